"""A model's decoding step as one compiled graph, for all lengths of the cache."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from torch import Tensor

from attnzoo.cache import KVCache
from attnzoo.errors import Refused
from attnzoo.kernels.compiling import growing, one_graph, torchs_reason

if TYPE_CHECKING:
    from attnzoo.model.lm import CausalLM, ModelCache

BACKEND = "inductor"

_STEPS: WeakKeyDictionary[CausalLM, Callable[..., Tensor]] = WeakKeyDictionary()


def decoding_step(model: CausalLM) -> Callable[..., Tensor]:
    """`CausalLM.forward` for one new token a row, compiled: (tokens (B, 1), key_padding, cache) -> logits (B, 1, V).

    One graph serves every length but that of a full cache; another batch size, or another room the first time, has one of
    its own too. Source: `torch.compile`.

    Raises (when called):
        Refused: the step cannot be traced as one graph, or nothing here compiles it.
    """
    if model not in _STEPS:
        _STEPS[model] = one_graph(type(model).forward, BACKEND)
    return functools.partial(_step, model)


def _step(model: CausalLM, tokens: Tensor, *, cache: ModelCache, key_padding: Tensor | None = None) -> Tensor:
    from torch._dynamo import maybe_mark_dynamic
    from torch._dynamo.exc import TorchDynamoException

    for layer in cache.layers:
        if isinstance(layer.attention, KVCache):
            for held in (layer.attention.keys, layer.attention.values):
                maybe_mark_dynamic(held, 2)
    try:
        with growing():
            return _STEPS[model](model, tokens, key_padding=key_padding, cache=cache)
    except TorchDynamoException as error:
        headline = "this model's decoding step cannot be compiled; generate without compiled=True"
        raise Refused(headline, [torchs_reason(error)]) from error
