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
    """The first factor's shape of every matrix product, the second's of every batch of them."""

    def __init__(self):
        super().__init__()
        self.first, self.batches = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default:
            self.first.append(tuple(args[0].shape))
        if func is torch.ops.aten.bmm.default:
            self.batches.append(tuple(args[1].shape))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("rows", "weight_first"), [(2, True), (FEW, True), (FEW + 1, False)])
def test_few_rows_put_the_weight_first(rows, weight_first):
    x, weight = torch.randn(rows, 1, 6), torch.randn(5, 6)
    with Products() as products:
        linear(x, weight)
    assert products.first == [(5, 6) if weight_first else (rows, 6)]


@pytest.fixture
def threads():
    """Sets how many threads a product may take, and puts the number back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("available", "n_out", "shared"), [(1, 6, None), (2, 6, 2), (4, 6, 2), (2, 5, None), (3, 6, 3)]
)
def test_one_row_shares_the_weight_among_the_threads(threads, available, n_out, shared):
    """As many products of as many rows each; one product where there is one thread, or no such share."""
    threads(available)
    x, weight = torch.randn(1, 1, 6, dtype=torch.float64), torch.randn(n_out, 6, dtype=torch.float64)
    with Products() as products:
        out = linear(x, weight)
    assert products.batches == ([] if shared is None else [(shared, 6, n_out // shared)])
    torch.testing.assert_close(out, x @ weight.T)


def test_a_compiled_product_has_one_form():
    """A branch on the number of rows would compile anew for each batch size."""
    weight = torch.randn(5, 6)
    counted = CompileCounter()
    compiled = torch.compile(lambda x: linear(x, weight), backend=counted, dynamic=True)
    for rows in (3, 9, 40):
        compiled(torch.randn(rows, 1, 6))
    assert counted.frame_count == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (40, 1), (1, 5), (2, 1, 1)])
def test_compiled_values_and_gradients(shape, backend):
    """Also of x that lies apart in memory."""
    x = torch.randn(*shape, 12, dtype=torch.float64)[..., ::2].requires_grad_()
    weight = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    found = []
    for product in (torch.compile(linear, backend=backend, fullgraph=True), F.linear):
        out = product(x, weight)
        found.append((out, *torch.autograd.grad(out.square().sum(), (x, weight))))
    for mine, torchs in zip(*found, strict=True):
        torch.testing.assert_close(mine, torchs)
