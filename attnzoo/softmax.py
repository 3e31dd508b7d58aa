"""The softmax rule: its definition and its cost. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor


class Sized(Protocol):
    """What the cost of an attention depends on."""

    n_heads: int
    head_dim: int


def masked_softmax(scores: Tensor, visible: Tensor) -> Tensor:
    """Softmax along the key axis over visible keys; a row that sees none is exactly 0, with gradient 0.

    The row is guarded before the softmax: cleaning a NaN afterwards would still leave NaN gradients.
    """
    empty = ~visible.any(-1, keepdim=True)
    scores = scores.masked_fill(~visible, -math.inf).masked_fill(empty, 0.0)
    return torch.softmax(scores, dim=-1).masked_fill(empty, 0.0)


def products(q: Tensor, k: Tensor) -> Tensor:
    """q kᵀ over the last axes; in float32 where float16 would multiply, whose largest number is 65,504: queries and keys of
    norm 300 go beyond it."""
    kind = q.device.type
    autocast = torch.is_autocast_enabled(kind) and q.dtype != torch.float64
    if (torch.get_autocast_dtype(kind) if autocast else q.dtype) != torch.float16:
        return q @ k.mT
    with torch.autocast(kind, enabled=False):
        return q.float() @ k.float().mT


def causal_pairs(n_queries: int, n_keys: int) -> float:
    """Number of visible (query, key) pairs under the causal mask, last query aligned with last key."""
    rows = min(n_queries, n_keys)
    return rows * n_keys - rows * (rows - 1) / 2


def softmax_flops(attn: Sized, pairs: float) -> float:
    """Scores and aggregation, two operations per multiply-add, over the given number of (query, key) pairs per head."""
    return 4.0 * attn.n_heads * attn.head_dim * pairs
