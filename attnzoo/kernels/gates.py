"""Gates computed from the layer's input. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

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


def wide(dtype: torch.dtype) -> torch.dtype:
    """What gates, sums and states are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32
