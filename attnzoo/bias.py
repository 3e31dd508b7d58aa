"""What is added to the scores. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class ScoreBias(nn.Module):
    """A bias added to the scores that can be asked for any block of positions, so that nobody needs it as an n x n tensor.

    ``alibi_slopes``: where the bias is -slope_h · |i - j|, the slope of each head, for kernels that take these alone.
    """

    alibi_slopes: Sequence[float] | None = None

    def block(self, i: Tensor, j: Tensor) -> Tensor:
        """Bias for query positions ``i`` and key positions ``j`` of one broadcast shape S: (H, *S)."""
        raise NotImplementedError

    def by_head(self, device: torch.device) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        """``block`` as a function of i, j and a head h, all of shape (): arithmetic, and reads of tensors that are made before.

        A kernel that asks for one score at a time compiles it into its loop; where there is none, `block` is written out.
        """
        return None
