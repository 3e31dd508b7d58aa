"""Feature maps of linear attention: φ(q)·φ(k) in the place of exp(q·k). Shapes: (…, n) -> (…, features)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnzoo.kernels.derivatives import plainly


class EluPlusOne(torch.autograd.Function):
    """elu(x) + 1, positive everywhere: exp(x) below zero, where elu(x) + 1 would round to 0 in float32 from -17 on.

    Its derivative is min(elu(x) + 1, 1): nothing but the result is kept for the backward pass.
    """

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        y = x.clamp(max=0).exp_().add_(x.relu())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradient * y.clamp(max=1)


def elu_plus_one(x: Tensor) -> Tensor:
    """φ of arXiv:2006.16236; see `EluPlusOne`."""
    return x.clamp(max=0).exp() + x.relu() if plainly() else EluPlusOne.apply(x)


def taylor(x: Tensor) -> Tensor:
    """φ(q)·φ(k) = 1 + q·k + (q·k)²/2, never below 1/2: 1 + n + n(n + 1)/2 features (arXiv:2402.18668).

    The paper's n² products hold each pair of channels twice; here once, times sqrt(2).
    """
    squares = [x[..., i:] * x[..., i, None] for i in range(x.shape[-1])]
    squares = [torch.cat([s[..., :1] / math.sqrt(2), s[..., 1:]], -1) for s in squares]
    return torch.cat([torch.ones_like(x[..., :1]), x, *squares], -1)


def orthogonal_directions(n_features: int, n: int, seed: int) -> Tensor:
    """(n_features, n) float32: Gaussian directions, orthogonal within each n of them (arXiv:2009.14794, section 2.4).

    The same for one seed on every machine and at every call.
    """
    generator, blocks = torch.Generator().manual_seed(seed), []
    draw = lambda: torch.randn(n, n, generator=generator, dtype=torch.float64)  # noqa: E731
    for _ in range(-(-n_features // n)):
        turn, upper = torch.linalg.qr(draw())
        # signs make the turn uniform; lengths come from a draw of their own, as independent of it as a Gaussian's are
        blocks.append((turn * upper.diagonal().sign()).T * draw().norm(dim=1, keepdim=True))
    return torch.cat(blocks)[:n_features].float()


def log_positive_features(x: Tensor, directions: Tensor) -> Tensor:
    """log φ_r(x) = w_r·x - |x|²/2: E_w[φ(q)·φ(k)] = exp(q·k), all features positive (FAVOR+, arXiv:2009.14794, lemma 1)."""
    return x @ directions.to(x.dtype).mT - x.square().sum(-1, keepdim=True) / 2
