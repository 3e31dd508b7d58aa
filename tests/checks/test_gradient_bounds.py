"""The tolerance of gradients in half types: a factor of a few per cent does not hide in it."""

from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo.backends.sdpa import SDPA
from attnzoo.checks import Subject
from attnzoo.checks.cases import Case
from attnzoo.checks.compare import Failed, InPrecision, expect_close, expect_unbiased
from attnzoo.checks.gradients import _plain, gradients_agree, upstream


class Scaled(torch.autograd.Function):
    """The same forward, a gradient ``by`` times as large."""

    @staticmethod
    def forward(ctx, t, by):
        ctx.by = by
        return t.view_as(t)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.by, None


def off_by(which, by):
    class Off(SDPA):
        def attend(self, q, k, v, mask, bias, x):
            q, k, v = (Scaled.apply(t, by) if name == which else t for name, t in zip("qkv", (q, k, v), strict=True))
            return super().attend(q, k, v, mask, bias, x)

    return Off


LOW = Case(n_queries=17, n_keys=17, dtype=torch.bfloat16)


@pytest.mark.parametrize(("which", "by"), [("q", 1.1), ("q", 0.95), ("k", 1.05), ("v", 1.05), ("v", 0.95)])
def test_a_gradient_that_is_some_per_cent_off_in_bfloat16_is_seen(which, by):
    with pytest.raises(Failed) as seen:
        gradients_agree(Subject.of(off_by(which, by)), LOW)
    assert seen.value.where.startswith(f"d {which}")


def test_and_by_the_short_check():
    report = attnzoo.check(off_by("q", 1.1), quick=True, only=["gradients"])
    assert report.failed_checks() == ["gradients"]


@pytest.mark.parametrize("name", ["sdpa", "exact", "differential", "mamba2", "linear"])
def test_right_ones_pass(name):
    subject = Subject.of(name)
    for seed in range(3):
        gradients_agree(subject, Case(n_queries=17, n_keys=17, dtype=torch.bfloat16, seed=seed))


def test_the_plain_gradient_is_that_of_the_same_upstream_gradient():
    """Drawn within the other precision it was another one, and its error larger than the gradient."""
    subject = Subject.of("exact")
    module, inputs = subject.build(LOW), subject.inputs(LOW)
    plain = _plain(module, inputs, upstream(inputs))
    wide = _plain(subject.build(LOW).double(), inputs.double(), upstream(inputs).double())
    for name in "qkv":
        assert (plain[name].double() - wide[name]).norm() < 0.02 * wide[name].norm()


def test_what_is_drawn_in_another_precision_is_the_same_draw():
    def drawn():
        return torch.randn(9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    right = drawn()
    with InPrecision(torch.bfloat16):
        low = drawn()
    assert low.dtype == torch.bfloat16
    assert torch.equal(low, right.bfloat16())


def test_a_factor_is_seen_where_each_number_is_within_its_bound():
    exact = torch.randn(400, dtype=torch.float64)
    plain = exact.bfloat16()
    expect_unbiased(plain, exact, plain, "t")
    expect_unbiased((exact * (1 + 0.01 * torch.randn(400))).bfloat16(), exact, plain, "t")
    for by in (0.96, 1.04):
        with pytest.raises(Failed, match="times"):
            expect_unbiased((by * exact).bfloat16(), exact, plain, "t")


def test_conditioning_is_asked_only_where_the_plain_computation_does_not_explain():
    exact = torch.ones(3, dtype=torch.float64)
    expect_close(exact.float(), exact, exact.float(), "t", moved=lambda: pytest.fail("not needed"))
    near = exact.float() + 1e-5
    with pytest.raises(Failed):
        expect_close(near, exact, exact.float(), "t")
    expect_close(near, exact, exact.float(), "t", moved=lambda: 4e-6)
    with pytest.raises(Failed):  # never beyond the cap
        expect_close(exact.float() + 0.01, exact, exact.float(), "t", moved=lambda: 1.0)


def test_numbers_too_small_for_the_type_accuse_nobody_and_others_still_do():
    """float16 holds nothing between 0 and 6e-8: a product of tiny numbers is 0 there, and 0 times the definition's."""
    small = torch.full((4,), 2e-8, dtype=torch.float64)
    expect_unbiased(small.half(), small, None, "out")
    assert small.half().tolist() == [0.0] * 4
    large = torch.full((400,), 0.5, dtype=torch.float64)
    with pytest.raises(Failed):
        expect_unbiased((large * 1.05).half(), large, large.half(), "out")
