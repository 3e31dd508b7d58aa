"""Zeros around a sequence."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def pad_tokens(t: Tensor, before: int, after: int) -> Tensor:
    """(…, T, ·) with zeros before and after its tokens, or without as many of them where negative.

    torch's pad copies even where there is nothing to pad; to torch.compile that is one graph for all lengths.
    """
    if not (before or after) and not torch.compiler.is_compiling():
        return t
    return F.pad(t, (0, 0, before, after))
