"""Softmax attention through FlexAttention: any mask and score bias, compiled into one kernel."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, lru_cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from attnzoo.contract import Attention, Capabilities, Options, Request, ScoreBias
from attnzoo.masks import Mask
from attnzoo.masks.translate import flex_mask_mod
from attnzoo.registry import register

LARGE = 2**28  # entries of a Tq x Tk matrix


@cache
def _compiled():
    return torch.compile(flex_attention, dynamic=True)


def _eager(wanted: bool) -> AbstractContextManager:
    """Keeps flex_attention from tracing each new mask function with dynamo even when it is run eagerly (0.3 s a call)."""
    return torch.compiler.set_stance("force_eager") if wanted and not torch.compiler.is_compiling() else nullcontext()


@register("flex")
class Flex(Attention):
    """Exact softmax attention by FlexAttention; ``kernel`` is auto, compiled or eager.

    O = softmax(Q K^T / sqrt(D) + M) V. auto compiles on CUDA and runs eagerly elsewhere; on a CPU torch has no backward
    for it: inference only.
    Cost: time O(blocks the mask leaves visible), memory O(T) compiled and O(Tq·Tk) eager. State: 2·T·G·D.
    Use: on a GPU, for masks and score biases that the other fused kernels are given densely.
    """

    source = "arXiv:2412.05496"
    capabilities = Capabilities(
        dropout=False,
        products=True,
        dtypes=(torch.float32, torch.bfloat16, torch.float16),
        training_devices=("cuda",),
        memory=1.0,
        bitwise_prefix=False,
    )
    kernels = ("auto", "compiled", "eager")

    @classmethod
    def declared(cls, options: Options, device: str = "cpu") -> Capabilities:
        return cls.capabilities if _compiles(options, device) else replace(cls.capabilities, memory=2.0)

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        if request.device == "cuda" and request.head_dim < 16 and request.options.kernel != "eager":
            yield f"flex needs head_dim of at least 16 on CUDA; got {request.head_dim}"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        n_queries, n_keys = q.shape[2], k.shape[2]
        block_mask = _block_mask(mask, q, n_keys)
        score_mod = None if bias is None else _score_mod(bias, n_keys - n_queries)
        compiled = _compiles(self.options, q.device.type)
        run = _compiled() if compiled else flex_attention
        with warnings.catch_warnings(), _eager(not compiled):
            warnings.filterwarnings(
                "ignore", message="flex_attention called without torch.compile"
            )  # asked for; recorded
            out = run(
                q,
                k,
                v,
                score_mod=score_mod,
                block_mask=block_mask,
                scale=self.scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        self.ran("flex/compiled" if compiled else "flex/eager")
        return out


def _block_mask(mask: Mask, q: Tensor, n_keys: int) -> BlockMask | None:
    """Which blocks are visible; None where all are: one query at the end of a causal sequence."""
    batch, _, n_queries, _ = q.shape
    if n_queries == 1 and not mask.fields:
        return None
    if mask.static and not torch.compiler.is_compiling():
        return static_block_mask((mask.causal, mask.window, mask.sinks, mask.prefix), n_queries, n_keys, q.device)
    mod = flex_mask_mod(mask, n_queries, n_keys)
    return create_block_mask(mod, None if mask.static else batch, None, n_queries, n_keys, device=q.device)


@lru_cache(maxsize=8)
def static_block_mask(fields: tuple, n_queries: int, n_keys: int, device: torch.device) -> BlockMask:
    """The block mask of positions alone, built once for all layers and steps.

    Uncompiled, torch builds it from a Tq x Tk matrix; compiling takes seconds, which pays for large ones only.
    """
    large = device.type == "cuda" and n_queries * n_keys > LARGE
    make = _compiled_block_mask() if large else create_block_mask
    with torch.inference_mode(False):  # made during an evaluation, it must still serve training
        return make(flex_mask_mod(Mask(*fields), n_queries, n_keys), None, None, n_queries, n_keys, device=device)


@cache
def _compiled_block_mask():
    return torch.compile(create_block_mask)


def _compiles(options: Options, device: str) -> bool:
    return options.kernel == "compiled" or (options.kernel == "auto" and device == "cuda")


def _score_mod(bias: ScoreBias, offset: int):
    """FlexAttention asks for one score at a time: row and column numbers, the row shifted to its position."""

    def add(score: Tensor, b: Tensor, h: Tensor, q_index: Tensor, kv_index: Tensor) -> Tensor:
        return score + bias.block(q_index + offset, kv_index)[h]

    return add
