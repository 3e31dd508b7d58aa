from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo.backends.performer import running_peaks
from attnzoo.checks.pytest import conformance

test_conformance = conformance("performer", quick=True)


def test_many_features_approach_softmax():
    q, k, v = (0.3 * torch.randn(1, 2, 24, 8) for _ in range(3))  # short: the variance grows as exp|q + k|²
    right = attnzoo.build("exact", n_heads=2, head_dim=8)(q, k, v)
    errors = []
    for m in (64, 4096):
        out = attnzoo.build("performer", n_heads=2, head_dim=8, features=m)(q, k, v)
        errors.append((out - right).abs().max().item())
    assert errors[1] < 0.03 * right.abs().max()  # the error of a mean of m draws falls as 1/sqrt(m)
    assert errors[1] < errors[0] / 2


def test_the_seed_fixes_the_features():
    sizes = {"n_heads": 2, "head_dim": 8}
    one, same, other = (attnzoo.build("performer", **sizes, seed=s) for s in (0, 0, 1))
    assert one.directions.shape == (17, 8)  # 8 ln 8
    assert torch.equal(one.directions, same.directions)
    assert not torch.equal(one.directions, other.directions)


@pytest.mark.parametrize("size", [30.0, 300.0])
def test_large_keys_neither_overflow_nor_vanish(size):
    """The peak so far is taken out: |k|² in the thousands underflows any fixed reference in float32."""
    rule = attnzoo.build("performer", n_heads=1, head_dim=4)
    q, k, v = torch.randn(1, 1, 12, 4), size * torch.randn(1, 1, 12, 4), torch.randn(1, 1, 12, 4)
    out, right = rule(q, k, v), rule.reference(q, k, v)[0]
    # exponents near size² / 2 rounded to float32
    torch.testing.assert_close(out.double(), right, atol=size**2 * 1e-6, rtol=0)


def test_running_peaks_stay_within_a_document():
    peaks = torch.tensor([[[3.0, 1.0, 2.0, -5.0, -4.0, 0.0, -9.0]]])
    starts = torch.tensor([[False, False, False, True, False, False, True]])
    before = torch.tensor([[2.5]])
    assert running_peaks(peaks, before, None)[0, 0].tolist() == [2.5, 3, 3, 3, 3, 3, 3, 3]
    assert running_peaks(peaks, before, starts)[0, 0].tolist() == [2.5, 3, 3, 3, -5, -4, 0, -9]
    first = torch.tensor([[True] + [False] * 6])
    assert running_peaks(peaks - 1, before, first)[0, 0].tolist() == [2.5, 2, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("seed", range(6))
def test_queries_that_point_away_from_every_key_leave_gradients_finite(seed):
    """The sum of the weights may all but underflow; its reciprocal must not overflow."""
    rule = attnzoo.build("performer", n_heads=2, head_dim=8, seed=seed)
    sizes = torch.tensor([1e-6, 1e-2, 1.0, 30.0])[torch.randint(4, (3, 2, 2, 12, 8))]
    leaves = [t.clone().requires_grad_() for t in sizes * torch.randn(3, 2, 2, 12, 8)]
    rule(*leaves).square().sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in leaves)
