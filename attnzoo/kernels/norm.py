"""Root-mean-square norm with a backward of its own, for CPUs. Source: arXiv:1910.07467."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.kernels.derivatives import plainly, recorded_gradients


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean x² + eps) · gain over the last axis (…, D).

    torch fuses it on CUDA and when compiled. In training on a CPU it composes it of seven operations and their
    derivatives, some twenty walks through memory; here it is thirteen. One row, as in decoding, costs what its operations
    cost to call; a product with itself saves some.
    """
    if gain.dtype != x.dtype:
        gain = gain.to(x.dtype)
    training = torch.is_grad_enabled() and (x.requires_grad or gain.requires_grad)
    if x.is_cuda and torch.is_autocast_enabled("cuda"):
        with torch.autocast("cuda", enabled=False):  # CUDA's autocast, unlike a CPU's, returns float32
            return torch.rms_norm(x, x.shape[-1:], gain, eps)
    if x.is_cuda or x.dtype.itemsize < 4 or plainly():
        return torch.rms_norm(x, x.shape[-1:], gain, eps)
    if training:
        return _RMSNorm.apply(x, gain, eps)
    if x.dim() > 1 and x.numel() == x.shape[-1]:
        row = x.reshape(1, -1)
        return torch.rsub(row @ row.t(), eps, alpha=-1 / x.numel()).rsqrt_().mul(x).mul_(gain)  # eps + Σ x²/D
    return torch.rms_norm(x, x.shape[-1:], gain, eps)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, gain, scale)
        ctx.eps = eps
        return torch.mul(x, scale).mul_(gain)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """With r the scale: dx = r·g·gain - x·r³·Σ(g·x·gain)/D, dgain = Σ r·g·x over all rows."""
        x, gain, scale = ctx.saved_tensors
        if torch.is_grad_enabled():
            norm = lambda x, gain: torch.rms_norm(x, x.shape[-1:], gain, ctx.eps)  # noqa: E731
            return *recorded_gradients(norm, (x, gain), gradient), None
        products = (gradient * x).reshape(-1, x.shape[-1])
        along = (products @ gain).view_as(scale)
        d_gain = scale.reshape(1, -1) @ products
        d_x = torch.mul(gradient, gain).mul_(scale)
        d_x.addcmul_(x, scale.pow(3).mul_(along), value=-1 / x.shape[-1])
        return d_x, d_gain[0], None
