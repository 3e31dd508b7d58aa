"""Sigmoid weights: the bias by the training length or by what is seen, and no normalisation."""

from __future__ import annotations

import math

import pytest
import torch

import attnzoo
from attnzoo import Mask
from attnzoo.errors import RequestError


def weights(mask=Mask(), n=6, **options):
    """The weights of equal scores 0."""
    module = attnzoo.build("sigmoid", n_heads=1, head_dim=4, **options)
    q = torch.zeros(1 if mask.key_padding is None else mask.key_padding.shape[0], 1, n, 4)
    return module(q, q, torch.eye(n).expand(q.shape[0], 1, n, n), mask)[:, 0]


def test_the_bias_is_minus_log_of_the_training_length():
    rows = weights(length=100)[0]
    torch.testing.assert_close(rows[4, :5], torch.full((5,), 1 / (1 + 100)), rtol=1e-6, atol=0)
    assert rows[4, 5] == 0


def test_or_of_the_keys_each_query_sees():
    padding = torch.tensor([[True] * 6, [True, False, True, True, False, True]])
    rows = weights(Mask(key_padding=padding), length=None)
    assert rows[0, 3, 0].item() == pytest.approx(1 / (1 + 4))
    assert rows[1, 3, 0].item() == pytest.approx(1 / (1 + 3))
    assert rows[1, 3, 1] == 0


def test_a_tokens_weights_do_not_depend_on_each_other():
    """No normalisation: raising one key's score leaves the weight of every other."""
    module = attnzoo.build("sigmoid", n_heads=1, head_dim=4, length=8)
    q, k = torch.randn(2, 1, 1, 6, 4)
    before = module.reference(q, k, k)[1]
    raised = k.clone()
    raised[:, :, 2] += q[:, :, 5]
    after = module.reference(q, raised, k)[1]
    assert after[0, 0, 5, 2] > before[0, 0, 5, 2]
    others = [0, 1, 3, 4, 5]
    assert torch.equal(after[..., 5, others], before[..., 5, others])


def test_a_row_of_zero_scores_sums_to_about_1_at_the_training_length():
    total = weights(n=64, length=64)[0, -1].sum().item()
    assert total == pytest.approx(64 / 65)
    assert math.isclose(weights(n=64, length=None)[0, 31].sum().item(), 32 / 33, rel_tol=1e-5)


def test_options_that_make_no_sense():
    with pytest.raises(RequestError, match="length=0"):
        attnzoo.build("sigmoid", n_heads=1, head_dim=4, length=0)
    with pytest.raises(RequestError, match="tile=0"):
        attnzoo.build("sigmoid", n_heads=1, head_dim=4, tile=0)
