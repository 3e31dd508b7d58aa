"""Softmax attention through xformers' memory-efficient operator. GPU only: xformers has no CPU operator."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from attnzoo.contract import Attention, Capabilities, Request, ScoreBias
from attnzoo.kernels.derivatives import first_order_only
from attnzoo.kernels.optional import load, missing
from attnzoo.masks import Mask
from attnzoo.masks.translate import XFORMERS_FIELDS, xformers_bias
from attnzoo.registry import register


@register("xformers")
class Xformers(Attention):
    """Exact softmax attention by xformers' memory-efficient operator.

    O = softmax(Q K^T / sqrt(D) + M) V. Window and documents use the library's own bias objects, translated from `Mask`; fields
    without such an object (sinks, prefix, key padding, score bias) are refused.
    Cost: time O(Tq·Tk), memory O(T). State: 2·T·G·D.
    Use: on a GPU, to compare with code that is built on this operator.
    """

    source = "arXiv:2112.05682; xformers.ops.memory_efficient_attention"
    capabilities = Capabilities(
        masks=XFORMERS_FIELDS,
        bias=False,
        products=True,
        value_dim=False,
        dtypes=(torch.float32, torch.float16, torch.bfloat16),
        devices=("cuda",),
        training_devices=("cuda",),
        memory=1.0,
        bitwise_prefix=False,
        compiles=False,
    )

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        if request.device != "cuda":
            yield f"xformers has no operator for {request.device}: memory_efficient_attention needs CUDA"
        else:
            yield from missing("xformers.ops", request.device)
        if "documents" in request.mask_fields and (request.cross or not request.contiguous_documents):
            yield "xformers takes documents with Tq = Tk and contiguous ids only"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        batch, heads, n_queries, _ = q.shape
        attn_bias = xformers_bias(mask, n_queries, k.shape[2], batch)
        q, k, v = (t.transpose(1, 2) for t in (q, self.repeat_kv(k), self.repeat_kv(v)))  # (B, T, H, D)
        if mask.documents is not None:  # the block-diagonal bias describes the batch packed into one row
            q, k, v = (t.flatten(0, 1)[None] for t in (q, k, v))
        out = load("xformers.ops").memory_efficient_attention(
            q, k, v, attn_bias=attn_bias, p=self.dropout_now, scale=self.scale
        )
        self.ran("xformers/memory_efficient")
        first_order_only(self.kernel, out)
        return out.reshape(batch, n_queries, heads, -1).transpose(1, 2)
