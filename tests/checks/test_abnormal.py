"""The table of abnormal input: classes of answers, and none of them a fault."""

from __future__ import annotations

import pytest
import torch

from attnzoo.backends.exact import Exact
from attnzoo.checks.abnormal import COLUMNS, _spread, answers


@pytest.mark.parametrize("name", ["exact", "sdpa", "sliding_window", "linear", "gla", "deltanet", "moba", "nsa"])
def test_nothing_reaches_another_sequence_and_nothing_is_computed_of_a_wrong_request(name):
    found = answers(name)
    assert tuple(found) == COLUMNS
    assert (found["T = 0"], found["batch 0"], found["no key visible"]) == ("refused", "empty", "0")
    assert found["cache full"] == "refused"
    assert not any("others'" in answer for answer in found.values())


def test_a_value_that_reaches_other_rows_is_seen():
    out = torch.zeros(3, 1, 9, 3)
    out[1, 0, 6] = torch.nan
    assert _spread(lambda: out) == "seen"
    out[1, 0, 1] = torch.inf
    assert _spread(lambda: out) == "sequence"
    for other in (0, 2):
        reached = out.clone()
        reached[other, 0, 8] = torch.nan
        assert _spread(lambda reached=reached: reached) == "others'"


class Mixes(Exact):
    """One that is wrong while it trains alone: rows of the batch meet, or a hidden key has a gradient."""

    fault = "output"

    def attend(self, q, k, v, mask, bias, x):
        out = super().attend(q, k, v, mask, bias, x)
        if not (self.training and torch.is_grad_enabled()):
            return out
        if self.fault == "output":
            return out + 0 * v.sum()
        if self.fault == "gradient":
            return out + (v.sum() - v.sum()).nan_to_num() * 0 + Planted.apply(out, v)
        return out + Unseen.apply(v).sum(2, keepdim=True)


class Planted(torch.autograd.Function):
    """0 with the gradient of the batch before in it."""

    @staticmethod
    def forward(ctx, out, v):
        ctx.save_for_backward(v)
        return torch.zeros_like(out)

    @staticmethod
    def backward(ctx, g):
        (v,) = ctx.saved_tensors
        return g, v.roll(1, 0) * 0


class Unseen(torch.autograd.Function):
    """0 with a gradient."""

    @staticmethod
    def forward(ctx, v):
        return torch.zeros_like(v)

    @staticmethod
    def backward(ctx, g):
        return g + 1


@pytest.mark.parametrize(
    ("fault", "column", "answer"),
    [
        ("output", "NaN in v", "trained others'"),
        ("gradient", "NaN in v", "trained others'"),
        ("unseen", "no key visible", "trained finite"),
    ],
)
def test_what_is_wrong_in_training_alone_is_seen(monkeypatch, fault, column, answer):
    monkeypatch.setattr(Mixes, "fault", fault)
    found = answers(Mixes)
    assert answer in found[column].split("; ")
    assert "; " not in answers(Exact)["no key visible"]
