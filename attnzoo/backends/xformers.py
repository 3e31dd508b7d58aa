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
        elif (
            request.device == "cuda" and request.mask_fields <= XFORMERS_FIELDS and not missing("xformers.ops", "cuda")
        ):
            yield from _operators_reasons(request)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        batch, heads, n_queries, _ = q.shape
        sizes = (n_queries, k.shape[2], batch, q.device)
        if mask.documents is None:
            attn_bias = xformers_bias(mask, *sizes)
        else:  # their lengths are read from the device
            attn_bias = mask.made(("xformers", *sizes), lambda: xformers_bias(mask, *sizes))
        q, k, v = (t.transpose(1, 2) for t in (q, self.repeat_kv(k), self.repeat_kv(v)))  # (B, T, H, D)
        if mask.documents is not None:  # the block-diagonal bias describes the batch packed into one row
            q, k, v = (t.flatten(0, 1)[None] for t in (q, k, v))
        out = load("xformers.ops").memory_efficient_attention(
            q, k, v, attn_bias=attn_bias, p=self.dropout_now, scale=self.scale
        )
        self.ran("xformers/memory_efficient")
        first_order_only(self.kernel, out)
        return out.reshape(batch, n_queries, heads, -1).transpose(1, 2)


OF_THE_MACHINE = ("device=", "bf16 is only", "operator wasn't built", "xFormers wasn't build", "requires device")
"""Beginnings of what the operators say of a machine without CUDA, whatever they are asked."""


def _operators_reasons(request: Request) -> list[str]:
    """What the library's operators say themselves; nothing where one computes the forward pass and one the backward.

    They are asked with a few tokens of the request's kind, on a machine without CUDA without memory behind them.
    """
    fmha, here = load("xformers.ops.fmha"), torch.version.cuda is not None
    step = 16 // request.dtype.itemsize  # from compute capability 8.0 on, of which they know only on such a device
    if not here and request.head_dim % step:
        return [f"xformers' operators read {step} channels at once: head_dim={request.head_dim} is no multiple of it"]
    device = torch.device("cuda" if here else "meta")
    n_keys, fields = 16, request.mask_fields
    n_queries = 8 if request.cross else n_keys
    documents = (
        torch.zeros(1, n_keys, dtype=torch.long, device=device if here else "cpu") if "documents" in fields else None
    )
    mask = Mask("bidirectional" not in fields, 4 if "window" in fields else None, documents=documents)
    q, k = (
        torch.empty(1, n, request.n_heads, request.head_dim, device=device, dtype=request.dtype)
        for n in (n_queries, n_keys)
    )
    asked = fmha.Inputs(q, k, k, xformers_bias(mask, n_queries, n_keys), request.dropout)

    def first(kind: str, like: bool | None = None) -> tuple[type | None, list[str]]:
        """The operator that takes it, flash before cutlass as xformers has it, or the reasons of all."""
        said = []
        for family in (fmha.flash, fmha.cutlass):
            operator = getattr(family, kind)
            why = [r for r in operator.not_supported_reasons(asked) if here or not r.startswith(OF_THE_MACHINE)]
            if like is not None and like != operator.VARLEN_LSE_PACKED:
                why.append("it packs sums as the forward operator does not")
            if not why:
                return operator, []
            said.append(f"xformers' {operator.NAME}: {', '.join(why)}")
        return None, said

    forward, why = first("FwOp")
    if forward is None or not request.training:
        return why
    return first("BwOp", forward.VARLEN_LSE_PACKED if documents is not None else None)[1]  # type: ignore[attr-defined]
