"""Softmax attention through torch's fused kernels."""

from __future__ import annotations

from attnzoo.kernels.sdpa import FusedSoftmax
from attnzoo.registry import register


@register("sdpa")
class SDPA(FusedSoftmax):
    """Exact softmax attention, fused; ``kernel`` is auto, flash, efficient, cudnn, math, flash_attn or flash_attn_3 (packages).

    O = softmax(Q K^T / sqrt(D) + M) V. ``auto`` lets torch choose, and the choice is recorded; a kernel asked for by name runs
    or is refused.
    Cost: time O(Tq·Tk), memory O(T) with the flash, efficient and cudnn kernels; a mask that is not plain causality is
    passed densely, n x n bits, and the recorded kernel ends in ``+mask``. State: 2·T·G·D.
    Use: the first choice for softmax attention, and what the others are compared with.
    """

    source = "arXiv:2205.14135, arXiv:2307.08691"
