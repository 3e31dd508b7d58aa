"""A model's decoding step as one compiled graph, for all lengths of the cache."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from attnzoo.cache import KVCache
from attnzoo.errors import Refused

if TYPE_CHECKING:
    from attnzoo.model.lm import CausalLM, ModelCache

BACKEND = "inductor"
GROWING = r".*\.length,L\['key_padding'\]:1"
"""What another token changes, as torch.compile names it: of a cache and of the padding. Else the first token would get a
graph of its own."""

_STEPS: WeakKeyDictionary[CausalLM, Callable[..., Tensor]] = WeakKeyDictionary()


def decoding_step(model: CausalLM) -> Callable[..., Tensor]:
    """`CausalLM.forward` for one new token a row, compiled: (tokens (B, 1), key_padding, cache) -> logits (B, 1, V).

    One graph serves every length up to the room of the cache; another batch size, or another room the first time, has
    one of its own. Source: `torch.compile`.

    Raises (when called):
        Refused: the step cannot be traced as one graph, or nothing here compiles it.
    """
    if model not in _STEPS:
        _STEPS[model] = _compiled(type(model).forward)
    return functools.partial(_step, model)


def _compiled(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    # a model's graphs count for that model alone, where torch can tell (2.13): the ninth of a function is an error
    alone = {"isolate_recompiles": True} if "isolate_recompiles" in inspect.signature(torch.compile).parameters else {}
    return torch.compile(forward, fullgraph=True, backend=BACKEND, **alone)  # type: ignore[call-overload]


def _step(model: CausalLM, tokens: Tensor, *, cache: ModelCache, key_padding: Tensor | None = None) -> Tensor:
    from torch._dynamo import maybe_mark_dynamic
    from torch._dynamo.exc import TorchDynamoException

    for layer in cache.layers:
        if isinstance(layer.attention, KVCache):
            for held in (layer.attention.keys, layer.attention.values):
                maybe_mark_dynamic(held, 2)
    try:
        with torch.compiler.config.patch(dynamic_sources=GROWING):  # type: ignore[attr-defined]
            return _STEPS[model](model, tokens, key_padding=key_padding, cache=cache)
    except TorchDynamoException as error:
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise Refused("this model's decoding step cannot be compiled; generate without compiled=True", [why]) from error
