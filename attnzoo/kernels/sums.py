"""Sums whose order does not depend on which thread comes first.

On CUDA ``index_add_`` adds with atomic operations, and ``index_put_`` that accumulates sorts the index before.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNORDERED = ("flash", "efficient", "cudnn")
"""In the names of kernels whose backward on CUDA adds parts of a gradient as they are finished: torch's fused softmax, flash-attn
and xformers. Their outputs are the same bit for bit in each run, their gradients within rounding
(`torch.use_deterministic_algorithms` has torch's take another way)."""


def add_rows(total: Tensor, index: Tensor, rows: Tensor) -> None:
    """total[index] += rows, in place, rows of one index one after the other: the same bits in each run."""
    if total.is_cuda:
        total.index_put_((index,), rows, accumulate=True)
    else:
        total.index_add_(0, index, rows)


def add_blocks(total: Tensor, index: Tensor, blocks: Tensor) -> None:
    """The same along the third axis: total (B, G, N, …), index (M,), blocks (B, G, M, …)."""
    if total.is_cuda:
        add_rows(total.flatten(0, 2), in_every_row(total, index), blocks.flatten(0, 2))
    else:
        total.index_add_(2, index, blocks)


def in_every_row(total: Tensor, index: Tensor) -> Tensor:
    """Of total (B, G, N, …) laid out as (B·G·N, …), the index (M,) into N of each of the B·G rows: (B·G·M,)."""
    rows = torch.arange(total.shape[0] * total.shape[1], device=total.device)[:, None]
    return (rows * total.shape[2] + index).flatten()
