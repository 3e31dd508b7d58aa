"""The product with a weight, by whichever of its two forms a CPU computes faster."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

FEW = 16
"""Rows up to which W xᵀ is the faster form: 24 matrices of 42 MB, two threads, ms for x Wᵀ and W xᵀ: 2 rows 8.1 and 3.6,
4 rows 8.6 and 4.5, 8 rows 8.1 and 6.9, 16 rows 11.2 and 7.9; one row is the same product in both (LOG.md, 2026-11-30)."""


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x (…, C) times the transposed weight (N, C): (…, N). In decoding a row is a sequence."""
    if torch.compiler.is_compiling() or x.is_cuda:  # compiled, the branch would cost a graph a batch size
        return F.linear(x, weight)
    rows = x.numel() // x.shape[-1]
    if not 1 < rows <= FEW:
        return F.linear(x, weight)
    return torch.mm(weight, x.reshape(rows, -1).t()).t().contiguous().view(*x.shape[:-1], -1)
