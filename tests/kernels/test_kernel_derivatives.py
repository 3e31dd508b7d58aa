"""Operations with a backward of their own: every one has a right second derivative, and a plain form for torch.func."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import attnzoo
from attnzoo.contract import ScoreBias
from attnzoo.errors import Refused
from attnzoo.kernels.blocks import Gathered, Overlapping
from attnzoo.kernels.chosen import InParts, attend_chosen
from attnzoo.kernels.derivatives import first_order_only, plainly, recorded_gradients, transformed
from attnzoo.kernels.features import EluPlusOne
from attnzoo.kernels.norm import _RMSNorm, rms_norm
from attnzoo.kernels.scan import Chunks, scan
from attnzoo.masks import Mask
from attnzoo.positions.rotation import _Rotation, rotate


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def chosen_keys(dropout=0.0):
    chosen = torch.tensor([[-1, 0], [-1, 0], [0, 1], [0, 1], [1, 2]])[None, None]

    def call(q, k, v):
        torch.manual_seed(3)
        return attend_chosen(q, k, v, Mask(), None, chosen, block_size=2, scale=0.5, dropout=dropout)

    return call, [drawn(1, 1, 5, 2) for _ in range(3)]


ANGLE = torch.rand(1, 1, 3, 2, dtype=torch.float64)
PHASES = torch.cat([ANGLE.cos(), ANGLE.cos()], -1), torch.cat([-ANGLE.sin(), ANGLE.sin()], -1)
CASES = {
    _RMSNorm: (lambda x, gain: rms_norm(x, gain, 1e-2), [drawn(3, 4), drawn(4)]),
    EluPlusOne: (EluPlusOne.apply, [drawn(7)]),
    Chunks: (lambda q, k, v: scan(q, k, v, chunk=2)[0], [drawn(1, 2, 5, 2), drawn(1, 1, 5, 2), drawn(1, 1, 5, 3)]),
    InParts: chosen_keys(),
    Overlapping: (lambda t: Overlapping.apply(t, 2, 2).square(), [drawn(1, 1, 6, 2)]),
    Gathered: (
        lambda t: torch.cat(Gathered.apply(t, torch.tensor([[0, 1]]), torch.tensor([[1, 1]])), 2).square(),
        [drawn(1, 1, 2, 2, 2)],
    ),
    _Rotation: (lambda t: rotate(t, PHASES).square(), [drawn(1, 1, 3, 4)]),
}


def test_every_operation_with_a_backward_of_its_own_is_tried_here():
    package = Path(attnzoo.__file__).parent
    own = re.findall(r"class (\w+)\((?:\w+\.)*Function\)", "".join(p.read_text() for p in package.rglob("*.py")))
    assert sorted(own) == sorted(c.__name__ for c in CASES)


@pytest.mark.parametrize("operation", CASES, ids=lambda c: c.__name__)
def test_the_second_derivative_is_that_of_differences(operation):
    call, inputs = CASES[operation]
    assert gradcheck(call, inputs)
    assert gradgradcheck(call, inputs)


def test_dropout_drops_the_same_weights_in_the_second_derivative():
    assert gradgradcheck(*chosen_keys(dropout=0.4))


@pytest.mark.parametrize("operation", CASES, ids=lambda c: c.__name__)
def test_both_forms_of_asking_agree(operation):
    """`backward` and `torch.autograd.grad` follow other parts of the graph: an error node without inputs stops only the first."""
    call, inputs = CASES[operation]
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    way = [torch.randn_like(t) for t in inputs]

    def along():
        found = torch.autograd.grad(call(*inputs).square().sum(), inputs, create_graph=True)
        return sum((g * d).sum() for g, d in zip(found, way, strict=True))

    by_grad = torch.autograd.grad(along(), inputs)
    along().backward()
    for t, g in zip(inputs, by_grad, strict=True):
        torch.testing.assert_close(t.grad, g)
    _, by_hvp = torch.autograd.functional.hvp(lambda *t: call(*t).square().sum(), tuple(inputs), tuple(way))
    for a, b in zip(by_hvp, by_grad, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("operation", [_RMSNorm, Chunks, InParts], ids=lambda c: c.__name__)
def test_torch_func_sees_through_the_plain_form(operation):
    call, inputs = CASES[operation]
    inputs, every = tuple(t.detach() for t in inputs), tuple(range(len(inputs)))
    loss = lambda *t: call(*t).square().sum()  # noqa: E731
    leaves = [t.clone().requires_grad_() for t in inputs]
    right = torch.autograd.grad(loss(*leaves), leaves)
    found = torch.func.grad(loss, every)(*inputs)
    batch = tuple(torch.stack([t, 2 * t]) for t in inputs)
    rows = torch.func.vmap(torch.func.grad(loss, every))(*batch)
    hessian = torch.autograd.functional.hessian(loss, inputs)
    for n, (mine, by_row, due) in enumerate(zip(found, rows, right, strict=True)):
        torch.testing.assert_close(mine, due)
        torch.testing.assert_close(by_row[0], due)
        torch.testing.assert_close(torch.func.hessian(loss, n)(*inputs), hessian[n][n])


class Slope(ScoreBias):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([0.3], dtype=torch.float64))

    def block(self, i, j):
        return self.slope.view(-1, *(1 for _ in (i - j).shape)) * (j - i).double()


def test_a_learned_bias_of_chosen_keys_has_one_too():
    _, inputs = chosen_keys()
    bias, chosen = Slope(), torch.zeros(1, 1, 5, 1, dtype=torch.long)

    def call(slope, *qkv):
        return attend_chosen(*qkv, Mask(), bias, chosen, block_size=5, scale=0.5)

    assert gradgradcheck(call, [bias.slope, *inputs])


def test_one_tensor_in_two_places_has_both_gradients():
    t = drawn(1, 1, 4, 2)
    assert gradgradcheck(lambda t: scan(t, t, t, chunk=2)[0], [t])


def test_what_wants_no_gradient_gets_none():
    x, gain = drawn(3, 4), torch.rand(4, dtype=torch.float64)
    found = recorded_gradients(lambda x, gain: x * gain, (x, gain), torch.ones(3, 4, dtype=torch.float64))
    assert found[1] is None
    torch.testing.assert_close(found[0], gain.expand(3, 4))
    assert gradgradcheck(lambda x: rms_norm(x, gain, 1e-2), [x])


def test_a_transform_is_seen_and_ends():
    seen = []

    def watched(t):
        seen.append((transformed(), plainly()))
        return t.sum()

    t = torch.ones(2)
    torch.func.grad(watched)(t)
    torch.func.vmap(watched)(t[None])
    torch.func.jvp(watched, (t,), (t,))
    with torch.autograd.forward_ad.dual_level():
        watched(t)
    assert seen == [(True, True)] * 4
    assert not transformed()
    assert not plainly()


class Once(torch.autograd.Function):
    """A library's kernel: its backward leaves no graph."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        with torch.no_grad():
            return 3 * ctx.saved_tensors[0] ** 2 * gradient


@pytest.mark.parametrize("ask", [lambda g, x: torch.autograd.grad(g.sum(), x), lambda g, x: g.sum().backward()])
def test_a_kernel_without_a_second_derivative_is_refused_and_keeps_its_first(ask):
    x = drawn(3)
    out = Once.apply(x)
    first_order_only("library/kernel", out, None)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x, retain_graph=True)[0], 3 * x.detach() ** 2)
    with pytest.raises(Refused, match="library/kernel has no second derivative"):
        ask(torch.autograd.grad((out + x.square()).sum(), x, create_graph=True)[0], x)


def test_an_output_without_a_gradient_may_pass():
    first_order_only("library/kernel", torch.ones(2))
