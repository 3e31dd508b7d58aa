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
    if x.is_cuda or x.dtype.itemsize < 4:  # in halves none of the forms gains
        return F.linear(x, weight)
    if torch.compiler.is_compiling():
        return _compiled(x, weight)
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


def _compiled(x: Tensor, weight: Tensor) -> Tensor:
    """The forms of a decoding step, told by axes of size 1, which are graphs of their own anyway: a branch on the number of
    rows would cost one a batch size."""
    if x.dim() != 3 or x.shape[1] != 1 or torch.is_autocast_enabled(x.device.type):
        return F.linear(x, weight)
    if (
        x.shape[0] == 1
    ):  # a sum becomes one loop in all threads; strides have x computed before and not for every row of it
        row = x.contiguous().as_strided((1, x.shape[2]), (x.shape[2], 1))
        return (weight * row).sum(-1).view(1, 1, -1)
    return torch.mm(weight, x.reshape(-1, x.shape[-1]).t()).t().contiguous().view(*x.shape[:-1], -1)
