"""Scores never exceed the cap; a bias is added after it."""

from __future__ import annotations

import math

import pytest
import torch

import attnzoo
from attnzoo.contract import ScoreBias
from attnzoo.errors import RequestError


def test_scores_are_bounded_softly():
    """Scores 0 and 30 (D = 1): capped at 3 they are 0 and 3·tanh(10) = 3."""
    module = attnzoo.build("softcap", n_heads=1, head_dim=1, cap=3.0)
    q, k, v = torch.tensor([[1.0], [30.0]]), torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]])
    out = module(*(t[None, None] for t in (q, k, v)))
    assert out[0, 0, 1].item() == pytest.approx(1 / (1 + math.exp(-3 * math.tanh(10))), rel=1e-6)


def test_the_bias_is_not_capped():
    class Far(ScoreBias):
        def block(self, i, j):
            return torch.where(j == 0, 20.0, 0.0).expand(1, *torch.broadcast_shapes(i.shape, j.shape))

    module = attnzoo.build("softcap", n_heads=1, head_dim=4, cap=1.0)
    zeros = torch.zeros(1, 1, 3, 4)
    weights = module.reference(zeros, zeros, zeros, bias=Far())[1]
    assert weights[0, 0, 2, 0].item() == pytest.approx(1 / (1 + 2 * math.exp(-20)), abs=1e-12)


def test_a_cap_must_be_positive():
    for cap in (0.0, -1.0, math.nan):
        with pytest.raises(RequestError, match="must be positive"):
            attnzoo.build("softcap", n_heads=1, head_dim=4, cap=cap)
