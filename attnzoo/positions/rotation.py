"""Turning queries and keys in pairs of channels, and the angles of positions. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.kernels.derivatives import plainly


def rotate(t: Tensor, phases: tuple[Tensor, Tensor] | None) -> Tensor:
    """Turn queries or keys (B, H, T, D) by their phases (B or 1, 1, T, D), in float32; unchanged without phases.

    Phases are the cosine of each channel and the sine, negative in the first half: t · cos + (its halves swapped) · sin.
    """
    if phases is None:
        return t
    if t.requires_grad and torch.is_grad_enabled() and not plainly():
        return _Rotation.apply(t, *phases)
    cos, sin = phases
    return _turned(t, cos, sin, 1)


class _Rotation(torch.autograd.Function):
    """Its derivative is the rotation back: neither t nor any product need be kept."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(t, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(gradient, cos, sin, -1), None, None


def _turned(t: Tensor, cos: Tensor, sin: Tensor, direction: int) -> Tensor:
    wide = t.float() if t.dtype.itemsize == 2 else t
    return torch.addcmul(wide * cos, wide.roll(t.shape[-1] // 2, -1), sin, value=direction).to(t.dtype)


def angles(positions: Tensor, width: int, base: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """positions (B or 1, T) -> (B or 1, T, ceil(width/2)), wavelengths from 2π to base·2π."""
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=dtype) / width
    return positions.to(dtype)[..., None] * base**-exponents
