"""Sines and cosines on the embeddings."""

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

RMS = 0.02
"""Root mean square of a fresh embedding, which theirs is scaled to."""


@dataclass(frozen=True)
class SinusoidalOptions(Options):
    """base: wavelengths grow geometrically from 2π to base·2π."""

    base: float = 10000.0

    def __post_init__(self) -> None:
        if not 0 < self.base < math.inf:
            raise RequestError(f"base={self.base}: must be more than 0")


@register("sinusoidal")
class Sinusoidal(Positions):
    """Fixed sines and cosines of geometric wavelengths, added to the embeddings.

    Departure: scaled to the root mean square of a fresh embedding instead of scaling the embedding up.
    """

    source = "arXiv:1706.03762, section 3.5"
    Options = SinusoidalOptions
    options: SinusoidalOptions

    def embed(self, h: Tensor, positions: Tensor, end: int | None = None) -> Tensor:
        return h + self._waves(angles(positions, self.d_model, self.options.base)).to(h.dtype)

    def reference(self, positions: Tensor) -> Tensor:
        """What `embed` adds, in float64."""
        return self._waves(angles(positions, self.d_model, self.options.base, torch.float64))

    def _waves(self, angle: Tensor) -> Tensor:
        waves = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., : self.d_model]
        return waves * RMS * math.sqrt(2)
