"""Rotary positions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnzoo.components import register
from attnzoo.errors import RequestError
from attnzoo.options import Options
from attnzoo.positions.base import Positions
from attnzoo.positions.rotation import angles


@dataclass(frozen=True)
class RopeOptions(Options):
    """base: wavelengths grow geometrically from 2π to base·2π."""

    base: float = 10000.0

    def __post_init__(self) -> None:
        if not 0 < self.base < math.inf:
            raise RequestError(f"base={self.base}: must be more than 0")


@register("rope")
class Rope(Positions):
    """Queries and keys are turned by their positions: q·k depends on content and on the difference of positions.

    Channel c is paired with channel c + D/2, the layout of Llama checkpoints.
    """

    source = "arXiv:2104.09864"
    Options = RopeOptions
    options: RopeOptions
    turns = True
    relative = True

    def __init__(self, options: RopeOptions, *, d_model: int, n_heads: int, head_dim: int) -> None:
        super().__init__(options, d_model=d_model, n_heads=n_heads, head_dim=head_dim)
        if head_dim % 2:
            raise RequestError(f"rope turns pairs of channels: head_dim {head_dim} must be even")

    def phases(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return _paired(angles(positions, self.head_dim, self.options.base))

    def reference(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """`phases` in float64."""
        return _paired(angles(positions, self.head_dim, self.options.base, torch.float64))


def _paired(angle: Tensor) -> tuple[Tensor, Tensor]:
    """Angles (B or 1, T, D/2) -> cosines and sines (B or 1, 1, T, D)."""
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
