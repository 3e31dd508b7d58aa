"""The product with a weight: one number whichever form computes it, and the form that is meant."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from attnzoo.kernels.linear import FEW, linear


@pytest.mark.parametrize("shape", [(1,), (1, 1), (2, 1), (3, 2), (FEW, 1), (FEW + 1, 1), (4, 9)])
def test_values_and_gradients(shape):
    x = torch.randn(*shape, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    found = []
    for product in (linear, F.linear):
        out = product(x, weight)
        found.append((out, *torch.autograd.grad(out.square().sum(), (x, weight))))
    for mine, torchs in zip(*found, strict=True):
        assert mine.is_contiguous() == torchs.is_contiguous()
        torch.testing.assert_close(mine, torchs)


class Products(TorchDispatchMode):
    """The first factor's shape of every matrix product."""

    def __init__(self):
        super().__init__()
        self.first = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default:
            self.first.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("rows", "weight_first"), [(1, False), (2, True), (FEW, True), (FEW + 1, False)])
def test_few_rows_put_the_weight_first(rows, weight_first):
    x, weight = torch.randn(rows, 1, 6), torch.randn(5, 6)
    with Products() as products:
        linear(x, weight)
    assert products.first == [(5, 6) if weight_first else (rows, 6)]


def test_a_compiled_product_has_one_form():
    """A branch on the number of rows would compile anew for each batch size."""
    weight = torch.randn(5, 6)
    counted = CompileCounter()
    compiled = torch.compile(lambda x: linear(x, weight), backend=counted, dynamic=True)
    for rows in (3, 9, 40):
        compiled(torch.randn(rows, 1, 6))
    assert counted.frame_count == 1
