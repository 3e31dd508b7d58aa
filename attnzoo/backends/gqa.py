"""Softmax attention with fewer key/value heads than query heads."""

from __future__ import annotations

from attnzoo.kernels.sdpa import FusedSoftmax
from attnzoo.registry import register


@register("gqa")
class GQA(FusedSoftmax):
    """Grouped-query attention: fused softmax attention with G = H/4, or what ``n_kv_heads`` says.

    O_h = softmax(Q_h K_g^T / sqrt(D) + M) V_g, g = h // (H/G).
    Cost: as sdpa. State: 2·T·G·D, H/G times smaller than with G = H.
    Where H is not a multiple of 4 the default is G = 1.
    Departure: the model is trained so from the start; the paper goes on from a model with G = H, its heads averaged.
    Use: where the cache, or reading it, dominates decoding; its paper reports quality near that of G = H.
    """

    source = "arXiv:2305.13245"

    @classmethod
    def default_kv_heads(cls, n_heads: int) -> int:
        return n_heads // 4 if n_heads % 4 == 0 else 1
