"""Models from elsewhere behind what the checks ask for: a Hugging Face causal LM, and whatever ``FILE.py:NAME`` gives.

Shapes: see `attnzoo.shapes`.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from attnzoo import components
from attnzoo.contract import Attention
from attnzoo.errors import RequestError, unknown
from attnzoo.from_files import module_of, register_file
from attnzoo.seeds import seeded
from attnzoo.terminal import one_line


@dataclass
class HuggingFaceCache:
    """The cache of a model of transformers, held to ``max_tokens``; ``nbytes`` is the room that takes."""

    max_tokens: int
    nbytes: int
    theirs: Any = None
    length: int = 0


class HuggingFace(nn.Module):
    """A causal LM of transformers as tokens (B, T) -> logits (B, T, V), with padding, a cache and its own ``generate``."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.vocab_size: int = model.config.vocab_size

    def forward(
        self, tokens: Tensor, key_padding: Tensor | None = None, cache: HuggingFaceCache | None = None
    ) -> Tensor:
        taken = inspect.signature(self.model.forward).parameters
        how: dict[str, Any] = {"use_cache": cache is not None}
        if key_padding is not None:
            how["attention_mask"] = key_padding.long()
            if "position_ids" in taken:
                how["position_ids"] = (key_padding.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        if cache is None:
            return self.model(input_ids=tokens, **how).logits
        length = cache.length + tokens.shape[1]
        if length > cache.max_tokens:
            raise RequestError(f"the cache is full: {length} tokens into {cache.max_tokens} places")
        name = "cache" if "cache" in taken else "past_key_values"  # renamed within transformers 5
        out = self.model(input_ids=tokens, **{name: cache.theirs}, **how)
        cache.theirs, cache.length = getattr(out, name), length
        return out.logits

    def new_cache(
        self,
        batch_size: int,
        max_tokens: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> HuggingFaceCache:
        """Room for ``max_tokens`` tokens; transformers allocates it as it goes, where and in what the model computes."""
        cfg, weight = self.model.config.get_text_config(), next(self.model.parameters())
        heads = getattr(cfg, "num_key_value_heads", None) or cfg.num_attention_heads
        dim = getattr(cfg, "head_dim", None) or cfg.hidden_size // cfg.num_attention_heads
        numbers = 2 * cfg.num_hidden_layers * batch_size * heads * dim * max_tokens
        return HuggingFaceCache(max_tokens, numbers * weight.element_size())

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int | None = None,
        *,
        use_cache: bool = True,
        key_padding: Tensor | None = None,
    ) -> Tensor:
        """tokens (B, T) continued by transformers: (B, T + max_new_tokens); no end token stops it."""
        mask = torch.ones_like(tokens) if key_padding is None else key_padding.long()
        draw = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        with seeded(seed, tokens.device):
            return self.model.generate(
                tokens, attention_mask=mask, max_new_tokens=max_new_tokens, min_new_tokens=max_new_tokens,
                use_cache=use_cache, pad_token_id=0, **draw,
            )  # fmt: skip


def adapted(model: nn.Module) -> nn.Module:
    """A language model as tokens -> logits: one of transformers (it has a ``config`` with a ``vocab_size``) behind
    `HuggingFace`, any other as it is."""
    config = getattr(model, "config", None)
    return HuggingFace(model) if hasattr(config, "vocab_size") and hasattr(model, "generate") else model


def load(spec: str) -> Any:
    """What ``FILE.py:NAME`` or ``package.module:NAME`` names: a component's class, an `Attention`, or a language model. Other
    functions and classes are called without arguments and must give one of these.

    Raises:
        RequestError: it cannot be imported, has no such name, or gives something else.
    """
    place, _, name = spec.rpartition(":")
    module = _imported(place)
    if not hasattr(module, name):
        raise RequestError(unknown(f"name in {place}", name, [key for key in vars(module) if not key.startswith("_")]))
    found = getattr(module, name)
    kind = components.kind_of(found)
    if kind is not None:
        if kind != "attention" and place.endswith(".py"):
            register_file(kind, place, name)  # its streams and messages go by its name
        return found
    if isinstance(found, type) and issubclass(found, Attention):  # the base class itself
        return found
    if not isinstance(found, nn.Module) and callable(found):
        found = found()
    if not isinstance(found, nn.Module):
        raise RequestError(f"{spec} gives {type(found).__name__}: an attention or a language model, both an nn.Module")
    return found if isinstance(found, Attention) else adapted(found)


def vocabulary(model: nn.Module, spec: str) -> int:
    """Its ``vocab_size``.

    Raises:
        RequestError: it has none.
    """
    size = getattr(model, "vocab_size", None)
    if not isinstance(size, int):
        raise RequestError(f"{spec}: a language model needs an attribute vocab_size, the number of its logits")
    return size


def _imported(place: str) -> ModuleType:
    if place.endswith(".py"):
        return module_of(Path(place))
    try:
        return importlib.import_module(place)
    except Exception as error:  # whatever the code does at import is its own; it is said in one line
        raise RequestError(f"{place} cannot be imported: {one_line(error)}") from error
