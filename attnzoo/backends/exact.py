"""Softmax attention, written out."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.contract import Attention, Capabilities, ScoreBias, masked_softmax
from attnzoo.masks import Mask
from attnzoo.registry import register
from attnzoo.softmax import products


@register("exact")
class Exact(Attention):
    """Softmax attention with the matrix of weights written out.

    O = softmax(Q K^T / sqrt(D) + M) V, the softmax along the keys.
    Cost: time and memory O(Tq·Tk). State: keys and values of every token, 2·T·G·D.
    Use: to read the matrix itself, as the baseline of correctness, and for short sequences.
    """

    source = "arXiv:1706.03762"
    capabilities = Capabilities(products=True)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        n_queries, n_keys = q.shape[2], k.shape[2]
        # query heads folded next to the key/value head they read, so that K and V are never repeated
        grouped = q.unflatten(1, (self.n_kv_heads, -1))  # (B, G, H/G, Tq, D)
        scores = products(grouped * self.scale, k[:, :, None]).flatten(1, 2)
        if bias is not None:
            i = torch.arange(n_keys - n_queries, n_keys, device=q.device)[:, None]
            scores = scores + bias.block(i, torch.arange(n_keys, device=q.device)[None, :])
        # half-precision scores are normalised in float32
        scores = scores.float() if scores.dtype.itemsize == 2 else scores
        weights = masked_softmax(scores, mask.dense(n_queries, n_keys, q.device))
        weights = F.dropout(weights.to(v.dtype), self.dropout_now)
        self.ran("exact/matmul")
        return (weights.unflatten(1, (self.n_kv_heads, -1)) @ v[:, :, None]).flatten(1, 2)
