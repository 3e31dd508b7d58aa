"""Initial decays: drawn within their bounds, and the memory that the cards state is that of built modules."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import attnzoo
from attnzoo import registry
from attnzoo.errors import RequestError

WITH_DECAY = ("mamba2", "gated_deltanet", "kda")
SLOW = {"a_min": 0.5, "a_max": 0.5, "dt_min": 0.001, "dt_max": 0.004}


def log_decay(rule, d_model=8):
    """Of a token whose input is 0, one number a head or channel."""
    x = torch.zeros(1, 1, d_model)
    if hasattr(rule, "log_decay"):
        return rule.log_decay(x).flatten()
    return rule.gate(x).flatten() if rule.name == "mamba2" else F.logsigmoid(rule.gate(x)).flatten()


@pytest.mark.parametrize("name", WITH_DECAY)
@pytest.mark.parametrize("options", [{}, SLOW])
def test_gates_start_within_their_bounds(name, options):
    rule = attnzoo.build(name, n_heads=64, head_dim=4, d_model=8, **options)
    own = rule.options
    steps, rates = rule.gate.steps(torch.zeros(1, 1, 8)), rule.gate.log_rate.exp()
    # what is kept are logarithms in float32, of size 7 and less: exact to 5e-7, and so is what they stand for to its own size
    assert own.dt_min * (1 - 1e-5) < steps.min() <= steps.max() < own.dt_max * (1 + 1e-5)
    assert own.a_min * (1 - 1e-5) < rates.min() <= rates.max() < own.a_max * (1 + 1e-5)


@pytest.mark.parametrize(("a", "dt"), [(1e9, 1e9), (1e-9, 1e9), (1e9, 1e-9), (1e-9, 1e-9)])
def test_the_ends_of_what_is_allowed_are_kept_by_float32(a, dt):
    rule = attnzoo.build("kda", n_heads=4, head_dim=4, d_model=8, a_min=a, a_max=a, dt_min=dt, dt_max=dt)
    torch.testing.assert_close(log_decay(rule), torch.full((16,), -a * dt), rtol=1e-5, atol=0)  # logarithms near 21


@pytest.mark.parametrize("name", WITH_DECAY)
@pytest.mark.parametrize(
    "wrong",
    [{"a_min": 0.0}, {"a_min": -1.0}, {"a_min": 17.0}, {"a_max": math.inf}, {"dt_min": 0.2}, {"dt_max": math.nan}],
)
def test_bounds_that_make_no_sense_are_refused_with_their_names(name, wrong):
    key = next(iter(wrong)).partition("_")[0]
    with pytest.raises(RequestError, match=rf"{key}_min=.*{key}_max=.*needs 1e-09 ≤ {key}_min ≤ {key}_max"):
        attnzoo.build(name, n_heads=2, head_dim=4, d_model=8, **wrong)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, options) for name in WITH_DECAY for options in ({}, SLOW, {"a_max": 1.0, "dt_max": 0.001})),
        ("gla", {}),
        ("gla", {"temperature": 64.0}),
        ("forgetting", {}),
        ("forgetting", {"bias": 5.0}),
    ],
)
def test_the_memory_that_a_card_states_is_that_of_fresh_gates(name, options):
    cls, n_heads = registry.get(name), 4096
    stated = cls.initial_memory(cls.Options(**options))
    torch.manual_seed(0)
    rule = attnzoo.build(name, n_heads=n_heads, head_dim=2, d_model=8, **options)
    found = (-1 / log_decay(rule).double()).median().item()
    # half of n draws lie below the median of their distribution give or take 3/(2 sqrt(n)): a quantile 0.023 off,
    # which in the widest of them (two and a half decades) is 15 %
    assert found == pytest.approx(stated, rel=0.15)


def test_the_published_ranges_remember_14_tokens():
    cls = registry.get("gated_deltanet")
    assert cls.initial_memory(cls.Options()) == pytest.approx(14.1, abs=0.05)
    assert cls.initial_memory(cls.Options(a_max=1.0, dt_max=0.001)) == pytest.approx(1000)


def test_what_has_no_gate_states_no_memory():
    for name in ("sdpa", "deltanet", "linear"):
        cls = registry.get(name)
        assert cls.initial_memory(cls.Options()) is None
