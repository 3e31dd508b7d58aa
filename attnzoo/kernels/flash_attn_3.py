"""FlashAttention-3, for Hopper: flash-attn's calls of the package ``flash_attn_interface``. Shapes: see `attnzoo.shapes`.

Windows, documents and the soft cap are given as to flash-attn; it has no dropout and no ALiBi slopes.
Source: arXiv:2407.08608 and its interface (flash-attention, hopper/flash_attn_interface.py), read; no GPU has run this yet.
"""

from __future__ import annotations

from attnzoo.capabilities import Capabilities, Request
from attnzoo.kernels import flash_attn
from attnzoo.kernels.optional import missing

PACKAGE = "flash_attn_interface"


def refusals(request: Request) -> list[str]:
    """Every reason why FlashAttention-3 cannot compute the request."""
    why = missing(PACKAGE, request.device) + flash_attn.limits(request, "flash_attn_3")
    if request.dropout:
        why.append("flash_attn_3 cannot drop attention weights")
    if request.bias and request.alibi:
        why.append("flash_attn_3 takes no score bias")
    return why


def declared(own: Capabilities, compiled: bool) -> Capabilities:
    """What a rule can honour where FlashAttention-3 computes it."""
    return flash_attn.declared(own, compiled)
