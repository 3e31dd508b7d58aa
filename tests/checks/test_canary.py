"""The entropy canary."""

from __future__ import annotations

import math

import pytest
from leaky_models import MIXES, TinyLM, V, lm
from torch import nn

from attnzoo import RequestError
from attnzoo.checks.canary import entropy_canary


def test_the_canary_passes_a_causal_model_and_catches_leaks_clearly():
    def reversed_mask():
        model = lm("exact", d_model=64)
        for attention in model.attention_modules():
            attention.attend = lambda q, k, v, *_: MIXES["reversed_mask"](q, k, v)
        return model

    assert entropy_canary(lambda: lm("exact", d_model=64), V, n_tokens=16, steps=100).passed
    leaky = entropy_canary(reversed_mask, V, n_tokens=16, steps=100)
    assert not leaky.passed
    assert leaky.max_change > 0.5 * math.log(V), leaky  # nats below the entropy
    assert leaky.first_leaking_position is not None


def test_the_canary_does_not_bark_over_many_seeds():
    assert all(entropy_canary(TinyLM, V, n_tokens=8, steps=10, seed=seed, batch_size=4).passed for seed in range(20))


def test_a_model_that_diverges_on_random_tokens_fails_the_canary():
    broken = entropy_canary(lambda: TinyLM(front=lambda m, tokens, h: h / 0), V, n_tokens=8, steps=2)
    assert not broken.passed
    assert "not finite" in broken.detail
    with pytest.raises(RequestError):
        entropy_canary(nn.Identity, V)
