"""Two maps over the halves, λ as in the paper, the norm, and RoPE's pairs kept whole."""

from __future__ import annotations

import math

import pytest
import torch

import attnzoo
from attnzoo.errors import Refused
from attnzoo.positions import build_positions, rotate


def make(**options):
    torch.manual_seed(0)
    return attnzoo.build("differential", n_heads=2, head_dim=8, **options)


def test_lambda_is_the_papers():
    module = make(lambda_init=0.3)
    q1, k1, q2, k2 = module.lambdas.detach().double()
    expected = math.exp(q1 @ k1) - math.exp(q2 @ k2) + 0.3
    assert module.lam.item() == pytest.approx(expected, rel=1e-6)
    assert module.lambdas.std().item() == pytest.approx(0.1, rel=0.5)  # 16 numbers


def test_equal_maps_leave_one_minus_lambda():
    """Rows of the difference sum to 1 - λ."""
    module, (q, k, v) = make(norm=False), torch.randn(3, 1, 2, 6, 8)
    sums = module.reference(q, k, v)[1].sum(-1)
    torch.testing.assert_close(sums, torch.full_like(sums, 1 - module.lam.item()), atol=1e-6, rtol=0)


def test_the_norm_sets_each_heads_size():
    """RMS 1 up to eps, times 1 - λ_init, whatever the values' size."""
    module, (q, k, v) = make(lambda_init=0.4), torch.randn(3, 1, 2, 6, 8)
    for size in (1.0, 100.0):
        rms = module(q, k, size * v).square().mean(-1).sqrt()
        torch.testing.assert_close(rms, torch.full_like(rms, 0.6), rtol=1e-3, atol=0)


def test_under_rope_both_maps_depend_on_distance_alone():
    module, (q, k, v) = make(), torch.randn(3, 1, 2, 6, 8, dtype=torch.float64)
    rope = build_positions("rope", d_model=16, n_heads=2, head_dim=8)
    weights = []
    for start in (0, 37):
        phases = tuple(t.double() for t in rope.phases(torch.arange(start, start + 6)[None]))
        weights.append(module.double().reference(rotate(q, phases), rotate(k, phases), v)[1])
    torch.testing.assert_close(*weights, atol=1e-5, rtol=1e-5)  # the phases are float32


def test_a_head_dim_without_two_whole_halves_is_refused():
    module = attnzoo.build("differential", n_heads=1, head_dim=6)
    with pytest.raises(Refused, match="multiple of 4"):
        module(*torch.randn(3, 1, 1, 2, 6))


def test_flops_are_three_halves_of_one_softmax():
    assert make().flops(7, 7) == 1.5 * attnzoo.build("sdpa", n_heads=2, head_dim=8).flops(7, 7)
