"""The product with a weight, by whichever of its forms a CPU computes fastest."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

FEW = 16
"""Rows up to which W xᵀ is the faster form: 24 matrices of 42 MB, two threads, ms for x Wᵀ and W xᵀ: 2 rows 8.1 and 3.6,
4 rows 8.6 and 4.5, 8 rows 8.1 and 6.9, 16 rows 11.2 and 7.9 (LOG.md, 2026-11-30)."""


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x (…, C) times the transposed weight (N, C): (…, N). In decoding a row is a sequence."""
    # compiled, the branches would cost a graph a batch size; in halves none of them gains
    if torch.compiler.is_compiling() or x.is_cuda or x.dtype.itemsize < 4:
        return F.linear(x, weight)
    rows = x.numel() // x.shape[-1]
    if rows == 1:
        return _one_row(x, weight)
    if not 0 < rows <= FEW:
        return F.linear(x, weight)
    return torch.mm(weight, x.reshape(rows, -1).t()).t().contiguous().view(*x.shape[:-1], -1)


def _one_row(x: Tensor, weight: Tensor) -> Tensor:
    """The product with one row, the weight's rows shared out among the threads: as one product it takes a single thread."""
    threads = math.gcd(torch.get_num_threads(), weight.shape[0])
    if threads == 1:
        return F.linear(x, weight)
    row = x.reshape(1, 1, -1).expand(threads, 1, -1)
    return torch.bmm(row, weight.view(threads, -1, weight.shape[1]).mT).view(*x.shape[:-1], -1)
