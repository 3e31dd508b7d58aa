"""The flash-attn package: exact softmax attention over plain, windowed and packed sequences. Shapes: see `attnzoo.shapes`.

Its conventions are translated in `attnzoo.masks.translate`. Window, soft cap and ALiBi slopes are its own arguments, key/value
heads are shared in the same order as here (query head h reads h // (H/G)), and a row that sees nothing is 0.
Source: FlashAttention-2, arXiv:2307.08691; flash_attn 2.8's interface, read; no GPU has run this yet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.capabilities import Capabilities, Request
from attnzoo.contract import ScoreBias
from attnzoo.kernels.constants import constant
from attnzoo.kernels.derivatives import first_order_only
from attnzoo.kernels.optional import load, missing
from attnzoo.masks import Mask
from attnzoo.masks.translate import FLASH_ATTN_FIELDS, flash_attn_arguments, flash_attn_packing

DTYPES = (torch.bfloat16, torch.float16)
LARGEST_HEAD = 256


def refusals(request: Request) -> list[str]:
    """Every reason why flash-attn cannot compute the request."""
    return missing("flash_attn", request.device) + limits(request, "flash_attn")


def limits(request: Request, name: str) -> list[str]:
    """What the kernels cannot compute on any device."""
    why = []
    if request.dtype not in DTYPES:
        why.append(f"{name} needs bfloat16 or float16; got {str(request.dtype).removeprefix('torch.')}")
    if request.head_dim > LARGEST_HEAD:
        why.append(f"{name} takes a head_dim of at most {LARGEST_HEAD}; got {request.head_dim}")
    if request.value_dim not in (None, request.head_dim):
        why.append(f"{name} needs Dv = D; got {request.value_dim} and {request.head_dim}")
    for unsupported in sorted(request.mask_fields - FLASH_ATTN_FIELDS):
        why.append(f"{name} cannot honour the mask field {unsupported!r}")
    if not request.contiguous_documents:
        why.append(f"{name} takes documents as contiguous runs of one id only")
    if request.bias and not request.alibi:
        why.append(f"{name} takes no score bias but ALiBi's slopes")
    return why


def declared(own: Capabilities, compiled: bool) -> Capabilities:
    """What a rule can honour where flash-attn computes it."""
    masks = own.masks & FLASH_ATTN_FIELDS
    return replace(
        own, masks=masks, value_dim=False, dtypes=DTYPES, devices=("cuda",), training_devices=("cuda",),
        bitwise_prefix=False,
    )  # fmt: skip


def flash_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: ScoreBias | None,
    *,
    scale: float,
    window: int | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    name: str = "flash_attn",
) -> tuple[Tensor, str]:
    """Softmax over the mask, of s·tanh(scores / s) with a ``softcap`` s, and of the last ``window`` keys: (B, H, Tq, Dv).

    The keys may be the last ones of the sequence; what the mask says of earlier ones is left out.
    """
    extra = q.shape[2] - k.shape[2]
    if extra > 0 and mask.documents is not None:  # queries before the first key are of no document and see nothing
        out, kernel = flash_softmax(
            q[:, :, extra:], k, v, mask, bias, scale=scale, window=window, softcap=softcap, dropout=dropout, name=name
        )
        return F.pad(out, (0, 0, extra, 0)), kernel
    how: dict[str, Any] = {**flash_attn_arguments(mask, window), "softmax_scale": scale, "softcap": softcap}
    if name == "flash_attn":
        slopes = None if bias is None else constant(tuple(map(float, bias.alibi_slopes or ())), q.device)
        how |= {"dropout_p": dropout, "alibi_slopes": slopes}
    there = [t.transpose(1, 2) for t in (q, k, v)]  # (B, T, heads, D)
    library = load("flash_attn" if name == "flash_attn" else "flash_attn_interface")
    if mask.documents is None:
        out = _output(library.flash_attn_func(*there, **how))
        first_order_only(f"{name}/func", out)
        return out.transpose(1, 2), f"{name}/func"
    ids, sizes = mask.documents, (len(q), q.shape[2], k.shape[2])
    packing = mask.made(
        ("flash_attn", *sizes), lambda: flash_attn_packing(ids[:, -sizes[2] :].expand(sizes[0], -1), sizes[1])
    )
    out = _output(library.flash_attn_varlen_func(*(t.flatten(0, 1) for t in there), **packing, **how))
    first_order_only(f"{name}/varlen", out)
    return out.unflatten(0, (q.shape[0], -1)).transpose(1, 2), f"{name}/varlen"


def _output(found: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Earlier releases of FlashAttention-3 give log Σ exp beside it."""
    return found[0] if isinstance(found, tuple) else found
