"""Decays computed from the layer's input, and how long they remember before training. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.kernels.gates import Gate
from attnzoo.kernels.recurrent import ChunkOptions

QUANTILES = 1024
LEAST, MOST = 1e-9, 1e9
"""Bounds of A and Δ, far inside what float32 holds."""


@dataclass(frozen=True)
class DecayOptions(ChunkOptions):
    """a_min: least initial A, uniform up to a_max, one a head; with a step Δ a token, the state fades to 1/e in 1/(A·Δ) tokens.
    a_max: largest initial A. dt_min: least initial step Δ, log-uniform up to dt_max. dt_max: largest initial step Δ."""

    a_min: float = 1.0
    a_max: float = 16.0
    dt_min: float = 0.001
    dt_max: float = 0.1

    def faults(self) -> list[str]:
        faults = super().faults()
        for name in ("a", "dt"):
            least, most = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if not LEAST <= least <= most <= MOST:
                bounds = f"{LEAST:g} ≤ {name}_min ≤ {name}_max ≤ {MOST:g}"
                faults.append(f"{name}_min={least}, {name}_max={most}: needs {bounds}")
        return faults


class DecayGate(Gate):
    """log α = -A softplus(gate(x)), A > 0 a head (arXiv:2405.21060): A starts uniform in [a_min, a_max], and softplus(bias),
    the step Δ, log-uniform in [dt_min, dt_max]."""

    def __init__(
        self, d_model: int | None, n_heads: int, width: int, options: DecayOptions, rank: int | None = None
    ) -> None:
        super().__init__(d_model, n_heads, width, rank)
        self.log_rate = nn.Parameter(torch.empty(n_heads).uniform_(options.a_min, options.a_max).log())
        lowest, highest = math.log(options.dt_min), math.log(options.dt_max)
        step = torch.empty_like(self.bias).uniform_(lowest, highest).exp()
        self.bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus

    def steps(self, x: Tensor) -> Tensor:
        """Δ > 0."""
        return F.softplus(super().forward(x))

    def decay(self, steps: Tensor) -> Tensor:
        """log α ≤ 0."""
        return -self.log_rate.to(steps.dtype).exp()[:, None, None] * steps

    def forward(self, x: Tensor) -> Tensor:
        return self.decay(self.steps(x))


def median_memory(options: DecayOptions) -> float:
    """The median of 1/(A·Δ) over the initial A and Δ, in tokens: by all pairs of their quantiles.

    >>> round(median_memory(DecayOptions()))
    14
    """
    at = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
    rates = options.a_min + (options.a_max - options.a_min) * at
    steps = options.dt_min * (options.dt_max / options.dt_min) ** at
    return (1 / (rates[:, None] * steps)).median().item()
