"""Softmax attention with one key/value head."""

from __future__ import annotations

from attnzoo.kernels.sdpa import FusedSoftmax
from attnzoo.registry import register


@register("mqa")
class MQA(FusedSoftmax):
    """Multi-query attention: fused softmax attention in which every query head reads the one key/value head.

    O_h = softmax(Q_h K^T / sqrt(D) + M) V for every query head h.
    Cost: as sdpa. State: 2·T·D, H times smaller than with G = H.
    Use: for the smallest cache that still sees everything; the paper of gqa reports some loss of quality.
    """

    source = "arXiv:1911.02150"

    @classmethod
    def default_kv_heads(cls, n_heads: int) -> int:
        return 1

    @classmethod
    def layout_reasons(cls, n_heads: int, n_kv_heads: int) -> list[str]:
        if n_kv_heads != 1:
            return [f"mqa has one key/value head; {n_kv_heads} were asked for (gqa and sdpa take more)"]
        return []
