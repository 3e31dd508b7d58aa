"""Hugging Face Llama of the same shape and weights: training, and generation with its caches (package transformers)."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from attnzoo.measure.latency import Contestant
from attnzoo.model.llama import export_llama
from attnzoo.model.lm import CausalLM

CACHES = ("dynamic", "static")


def llama_copy(ours: CausalLM, max_tokens: int) -> Any:
    """A ``LlamaForCausalLM`` with SDPA and the weights of ``ours``, which has rope and no QK-norm."""
    from transformers import LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    with TemporaryDirectory() as place:
        folder = export_llama(ours, Path(place) / "model")
        return LlamaForCausalLM.from_pretrained(folder, attn_implementation="sdpa", max_position_embeddings=max_tokens)


def generation(model: Any, kind: str, filled: list[tuple[Tensor, Tensor]], tokens: Tensor, new: int) -> Contestant:
    """Greedy ``generate`` of ``new`` tokens, by itself, after all but the last of ``tokens`` in its cache.

    Args:
        kind: of the cache, one of `CACHES`.
        filled: keys and values (B, G, T - 1, D) of each layer, which the cache starts with.
    """
    from transformers import DynamicCache, StaticCache

    context = tokens.shape[1] - 1
    cache: Any
    if kind == "static":
        cache = StaticCache(config=model.config, max_cache_len=tokens.shape[1] + new)
    else:
        cache = DynamicCache(config=model.config)
    for number, (keys, values) in enumerate(filled):
        cache.update(keys, values, number)
    model.eval()

    def prepare() -> None:
        beyond = int(cache.get_seq_length()) - context
        if beyond:
            cache.crop(-beyond)

    @torch.no_grad()
    def run() -> Tensor:
        return model.generate(
            tokens, cache=cache, max_new_tokens=new, do_sample=False, attention_mask=torch.ones_like(tokens)
        )

    return Contestant(run, prepare, units=new)
