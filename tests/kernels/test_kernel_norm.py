"""The norm with its own backward, against torch's."""

import pytest
import torch
from torch.nn import functional as F

from attnzoo.kernels.norm import rms_norm


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("swapped", [False, True])
def test_values_and_gradients_are_torchs(dtype, swapped):
    x = torch.randn(2, 5, 3, 8, dtype=dtype) * torch.logspace(-3, 3, 5, dtype=dtype)[:, None, None]  # rows of all sizes
    gain, gradient = torch.randn(8, dtype=dtype), torch.randn(2, 5, 3, 8, dtype=dtype)
    found = []
    for norm in (lambda x, g: rms_norm(x, g, 1e-4), lambda x, g: F.rms_norm(x, (8,), g, 1e-4)):
        a, b = x.clone().requires_grad_(), gain.clone().requires_grad_()
        wide, g = (a.transpose(1, 2), gradient.transpose(1, 2)) if swapped else (a, gradient)
        out = norm(wide, b)
        found.append((out, *torch.autograd.grad(out, (a, b), g)))
    for mine, torchs in zip(*found, strict=True):
        torch.testing.assert_close(mine, torchs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(8,), (1, 8), (1, 1, 8), (1, 2, 8)])
@pytest.mark.parametrize("size", [0.0, 1e-3, 1e3])
def test_one_row_without_gradients_is_torchs(dtype, shape, size):
    x, gain = size * torch.randn(shape, dtype=dtype), torch.randn(8, dtype=dtype)
    mine = rms_norm(x, gain, 1e-4)
    assert mine.shape == shape
    torch.testing.assert_close(mine, F.rms_norm(x, (8,), gain, 1e-4))


def test_a_row_of_zeros_has_a_finite_gradient():
    x, gain = torch.zeros(2, 4, requires_grad=True), torch.ones(4, requires_grad=True)
    gradients = torch.autograd.grad(rms_norm(x, gain, 1e-6).sum(), (x, gain))
    torch.testing.assert_close(gradients[0], torch.full((2, 4), 1e3))  # gain / sqrt(eps)
    torch.testing.assert_close(gradients[1], torch.zeros(4))


def test_gradients_by_finite_differences():
    x, gain = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.rand(4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x, g: rms_norm(x, g, 1e-2), (x, gain.requires_grad_()))


def test_a_gain_of_another_type_takes_the_inputs():
    """As under autocast, and in a model of mixed types."""
    x, gain = torch.randn(3, 8, dtype=torch.float64), torch.randn(8)
    found = []
    for norm in (lambda x, g: rms_norm(x, g, 1e-4), lambda x, g: F.rms_norm(x, (8,), g.double(), 1e-4)):
        a, b = x.clone().requires_grad_(), gain.clone().requires_grad_()
        out = norm(a, b)
        found.append((out, *torch.autograd.grad(out.square().sum(), (a, b))))
    for mine, torchs in zip(*found, strict=True):
        torch.testing.assert_close(mine, torchs)
