"""Gates computed from the layer's input, and their initial values. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.errors import RequestError


class Gate(nn.Module):
    """x (B, T, C) -> (B, G, T, n): a linear map, of low rank where ``rank`` is given, with a bias.

    The products run in the dtype of x, the sum with the bias and everything after in float32 (float64 for float64 input).

    Args:
        width: n, numbers a head.
    """

    def __init__(self, d_model: int | None, n_heads: int, width: int, rank: int | None = None) -> None:
        super().__init__()
        if d_model is None:
            raise RequestError("a rule with gates of its own computes them from the layer's input: give d_model")
        self.n_heads = n_heads
        self.down = nn.Linear(d_model, rank, bias=False) if rank else None
        self.up = nn.Linear(rank or d_model, n_heads * width, bias=False)
        self.bias = nn.Parameter(torch.zeros(n_heads * width))

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.down, self.up):
            if layer is not None:
                x = F.linear(x, layer.weight.to(x.dtype))
        x = x.to(wide(x.dtype))
        # contiguous: traced gradients of softplus on a transposed tensor come in other strides than real ones (torch 2.13)
        return (x + self.bias.to(x.dtype)).unflatten(-1, (self.n_heads, -1)).transpose(1, 2).contiguous()


class DecayGate(Gate):
    """log α = -A softplus(gate(x)), A > 0 a head (arXiv:2405.21060): A starts uniform in [1, 16], and softplus(bias), the step Δ,
    log-uniform in [0.001, 0.1]."""

    def __init__(self, d_model: int | None, n_heads: int, width: int, rank: int | None = None) -> None:
        super().__init__(d_model, n_heads, width, rank)
        self.log_rate = nn.Parameter(torch.empty(n_heads).uniform_(1, 16).log())
        step = torch.empty_like(self.bias).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        self.bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus

    def steps(self, x: Tensor) -> Tensor:
        """Δ > 0."""
        return F.softplus(super().forward(x))

    def decay(self, steps: Tensor) -> Tensor:
        """log α ≤ 0."""
        return -self.log_rate.to(steps.dtype).exp()[:, None, None] * steps

    def forward(self, x: Tensor) -> Tensor:
        return self.decay(self.steps(x))


def wide(dtype: torch.dtype) -> torch.dtype:
    """What gates, sums and states are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32
