"""An attention at its measured size: what short inputs do not show."""

from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo.backends.sdpa import SDPA
from attnzoo.checks.measured import measured_size, sampled
from attnzoo.checks.report import FAILED


def failed(attention, **how):
    how = {"batch": 2, "n_tokens": 60, "dtype": torch.float32} | how
    return [r.where.split("[")[0] for r in measured_size(attention, **how) if r.status == FAILED]


@pytest.mark.parametrize("name", ["sdpa", "sliding_window", "linear", "gla", "deltanet", "gqa", "moba"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_right_ones_pass(name, dtype):
    assert failed(attnzoo.build(name, n_heads=4, head_dim=8, d_model=32), dtype=dtype) == []


def test_a_long_input_is_compared_at_some_queries():
    assert failed(attnzoo.build("sdpa", n_heads=2, head_dim=8), n_tokens=700) == []
    assert {0, 350, 511, 513, 697, 699} <= set(sampled(700))


def wrong_where(condition):
    class Wrong(SDPA):
        def attend(self, q, k, v, mask, bias, x):
            out = super().attend(q, k, v, mask, bias, x)
            return 1.2 * out if condition(q, k) else out

    return Wrong(n_heads=4, n_kv_heads=4, head_dim=8)


@pytest.mark.parametrize(
    ("condition", "how", "seen"),
    [
        (lambda q, k: k.shape[2] > 50, {}, ["out", "d q", "decoded out"]),
        (lambda q, k: k.shape[2] > 600, {"n_tokens": 700}, ["out", "d q", "decoded out"]),
        (lambda q, k: q.shape[0] >= 9, {"batch": 9}, ["out", "d q", "decoded out"]),
        (lambda q, k: q.shape[2] == 1, {}, ["decoded out"]),
        (lambda q, k: torch.is_grad_enabled(), {}, ["d q"]),
        (lambda q, k: q.dtype == torch.bfloat16, {"dtype": torch.bfloat16}, ["out", "d q", "decoded out"]),
        (lambda q, k: q.shape[1] == 4, {}, ["out", "d q", "decoded out"]),
    ],
)
def test_what_is_wrong_only_there_is_seen(condition, how, seen):
    found = failed(wrong_where(condition), **how)
    assert [f.replace("d v", "d q").replace("d k", "d q") for f in found] == seen
