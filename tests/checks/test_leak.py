"""Planted leaks, each caught by the test that should catch it; correct models pass."""

from __future__ import annotations

import json
import math

import pytest
import torch
from leaky_models import (
    LATE,
    MIXES,
    PLANTED,
    SECOND_LOOKUP,
    WITHOUT_GRADIENT,
    C,
    T,
    TinyLM,
    V,
    causal,
    found,
    lm,
    longer_is_bidirectional,
    shorter_is_bidirectional,
)
from torch import nn
from torch.nn import functional as F

from attnzoo import leak_test


@pytest.mark.parametrize("n_tokens", [3, T, 140])
def test_a_plain_gpt_passes(n_tokens):
    report = leak_test(TinyLM(), vocab_size=V, n_tokens=n_tokens)
    assert report.passed, report
    assert [t.name for t in report.tests if t.skipped] == ["decoding"]  # it has no cache


BACKENDS = [
    ("exact", {}, "alibi"),
    ("sdpa", {}, "learned"),
    ("sliding_window", {"window": 7}, "rope"),
    ("block_sparse", {"block": 4, "window": 2}, "rope"),
    ("linear", {"chunk": 8}, "sinusoidal"),
    ("gqa", {}, "rope"),
    ("mqa", {}, "none"),
]


@pytest.mark.parametrize(("name", "options", "positions"), BACKENDS)
def test_every_backend_passes_bitwise(name, options, positions):
    report = leak_test(lm(name, options, positions, short_conv=4), vocab_size=V, n_tokens=25)
    assert report.passed, report
    assert not any(t.skipped for t in report.tests), report
    assert report["suffix_perturbation"].max_change == 0.0
    assert report["gradient_probe"].max_change == 0.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_pass(dtype):
    report = leak_test(lm().to(dtype), vocab_size=V, n_tokens=17)
    assert report.passed, report


def test_under_autocast_it_passes_within_the_rounding_of_bfloat16():
    with torch.autocast("cpu", torch.bfloat16):
        report = leak_test(lm(), vocab_size=V, n_tokens=17)
    assert report.passed, report
    assert "bfloat16" in report.setting
    assert not report["decoding"].skipped


def test_a_recurrent_model_passes():
    class GRU(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.rnn, self.head = nn.Embedding(V, C), nn.GRU(C, C, batch_first=True), nn.Linear(C, V)

        def forward(self, tokens):
            return self.head(self.rnn(self.tokens(tokens))[0])

    assert leak_test(GRU(), vocab_size=V, n_tokens=T).passed


def test_dropout_is_off_during_the_test_and_back_on_after():
    model = TinyLM(dropout=0.5).train()
    model.mlp.eval()  # a mixture of modes is put back as it was
    assert leak_test(model, vocab_size=V, n_tokens=T).passed
    assert model.training
    assert model.dropout.training
    assert not model.mlp.training


@pytest.mark.parametrize("name", PLANTED)
def test_planted_leak_is_caught(name):
    report = leak_test(PLANTED[name], vocab_size=V, n_tokens=T)
    expected = {"suffix_perturbation", "single_token", "gradient_probe"}
    if name in WITHOUT_GRADIENT | SECOND_LOOKUP:
        expected.discard("gradient_probe")
    assert expected <= found(report), report
    assert not report.passed
    assert report["suffix_perturbation"].first_leaking_position is not None


def test_the_one_leaking_row_and_the_token_it_saw_are_named():
    report = leak_test(PLANTED["one_future_key_in_one_row"], vocab_size=V, n_tokens=T)
    for name in ("suffix_perturbation", "single_token", "gradient_probe"):
        assert report[name].first_leaking_position == LATE
        assert f"logit {LATE}" in report[name].detail
        assert f"saw token {LATE + 1}" in report[name].detail
    assert f"saw token {LATE + 1}" in str(report)


def test_a_far_key_is_named_although_many_cuts_expose_it():
    report = leak_test(PLANTED["far_future_key_in_one_row"], vocab_size=V, n_tokens=T)
    assert "logit 5 of row" in report["suffix_perturbation"].detail
    assert f"saw token {T - 1}" in report["suffix_perturbation"].detail
    assert f"logit 5 saw token {T - 1}" in report["gradient_probe"].detail


def test_a_leak_at_short_lengths_only_is_caught_by_truncation():
    report = leak_test(TinyLM(mix=shorter_is_bidirectional), vocab_size=V, n_tokens=T)
    assert found(report) == {"truncation"}, report


def test_a_leak_beyond_a_length_needs_that_length():
    model = TinyLM(mix=longer_is_bidirectional)
    assert leak_test(model, vocab_size=V, n_tokens=16).passed
    assert "suffix_perturbation" in found(leak_test(model, vocab_size=V, n_tokens=17))


def test_a_leak_in_training_mode_only_is_caught_there():
    model = TinyLM()
    model.mix = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=not model.training)
    assert found(leak_test(model, vocab_size=V, n_tokens=T)) == {"training_mode"}


def test_buffers_changed_by_training_mode_are_put_back():
    model = TinyLM()
    model.norm = nn.BatchNorm1d(T)  # over (B, T, C): statistics of each position over batch and width
    before = model.norm.running_mean.clone()
    report = leak_test(model, vocab_size=V, n_tokens=T)
    assert torch.equal(model.norm.running_mean, before)
    assert "truncation" not in found(report), report  # it takes one length only: skipped, with the error
    assert "takes only T = 24" in report["truncation"].detail


def test_rows_that_mix_are_caught():
    model = TinyLM(front=lambda m, tokens, h: h + h.mean(0, keepdim=True))
    assert found(leak_test(model, vocab_size=V, n_tokens=T)) >= {"batch_isolation"}


def test_dropout_left_on_in_evaluation_fails_but_is_no_leak():
    report = leak_test(TinyLM(front=lambda m, tokens, h: F.dropout(h, 0.1)), vocab_size=V, n_tokens=T)
    assert {"repeatable"} <= found(report) <= {"repeatable", "truncation"}  # a shorter input is dropped differently


def test_a_leak_behind_zero_weights_is_caught_and_the_weights_stay():
    model = TinyLM(mix=MIXES["bidirectional"])
    nn.init.zeros_(model.out.weight)
    nn.init.zeros_(model.out.bias)
    report = leak_test(model, vocab_size=V, n_tokens=T)
    assert "suffix_perturbation" in found(report)
    assert "zero weights held noise" in report.setting
    assert not model.out.weight.any()


def test_nan_fails():
    report = leak_test(TinyLM(front=lambda m, tokens, h: h / 0 * 0), vocab_size=V, n_tokens=T)
    assert found(report) == {"finite_logits"}
    assert json.dumps(report.to_dict(), allow_nan=False)


def test_nan_for_some_tokens_only_fails():
    poison = TinyLM(front=lambda m, tokens, h: h + torch.where(tokens == tokens[0, -1], math.nan, 0.0)[..., None] * 0)
    assert not leak_test(poison, vocab_size=V, n_tokens=T).passed


def test_a_model_that_does_not_read_its_input_proves_nothing():
    constant = torch.randn(V)
    report = leak_test(lambda tokens: constant.expand(*tokens.shape, V), vocab_size=V, n_tokens=T)
    assert {"suffix_perturbation", "single_token"} <= found(report)
    assert "proves nothing" in report["suffix_perturbation"].detail


def test_a_model_that_does_not_read_the_past_is_said_to():
    table = torch.randn(V, V)
    report = leak_test(lambda tokens: table[tokens], vocab_size=V, n_tokens=T)
    assert report.passed
    assert report["reads_the_past"].skipped


# -- what trains is what is tested ---------------------------------------------------------------------------------------


def unmasked_where(condition):
    """A model whose attention drops its mask where ``condition`` (model, q) holds."""
    model = TinyLM()
    model.mix = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=not condition(model, q))
    return model


ONLY = {
    "while gradients are recorded": (lambda model, q: torch.is_grad_enabled(), "recording_gradients"),
    "while it trains": (lambda model, q: model.training and torch.is_grad_enabled(), "training_mode"),
    "in training beyond 40 tokens": (lambda model, q: model.training and q.shape[2] > 40, "training_mode"),
    "in a batch of nine": (lambda model, q: q.shape[0] >= 9, "recording_gradients"),
    "in a batch of nine while it trains": (lambda model, q: model.training and q.shape[0] >= 9, "training_mode"),
    "in training without gradients": (lambda model, q: model.training and not torch.is_grad_enabled(), "training_mode"),
}


@pytest.mark.parametrize("when", ONLY)
def test_a_mask_that_is_dropped_only_so_is_caught(when):
    condition, by = ONLY[when]
    report = leak_test(unmasked_where(condition), vocab_size=V, n_tokens=44, training_batch=9)
    assert by in found(report), report
    assert report.verdict == "leaks"
    assert report[by].first_leaking_position is not None


def test_a_mask_that_is_dropped_after_some_steps_is_caught():
    steps = [0]

    def late(model, q):
        steps[0] += model.training
        return model.training and steps[0] > 5

    model = unmasked_where(late)
    for _ in range(5):
        model(torch.zeros(1, 4, dtype=torch.long))
    assert found(leak_test(model, vocab_size=V, n_tokens=T)) == {"training_mode"}


def test_a_mask_that_is_dropped_under_autocast_is_caught_where_the_callable_uses_it():
    model = unmasked_where(lambda model, q: torch.is_autocast_enabled("cpu"))

    def low(tokens):
        with torch.autocast("cpu", torch.bfloat16):
            return model(tokens)

    assert leak_test(model, vocab_size=V, n_tokens=T).passed
    assert {"suffix_perturbation", "training_mode"} <= found(leak_test(low, vocab_size=V, n_tokens=T))


def test_one_future_key_of_one_row_is_caught_while_it_trains():
    """Only the gradient of each logit looks at every position then."""
    leaky, model = MIXES["one_future_key_in_one_row"], TinyLM()
    model.mix = lambda q, k, v: (leaky if model.training else causal)(q, k, v)
    report = leak_test(model, vocab_size=V, n_tokens=T)
    assert found(report) == {"training_mode"}
    assert f"logit {LATE} saw token {LATE + 1}" in report["training_mode"].detail


def test_a_row_far_down_the_batch_is_looked_at():
    model = TinyLM()
    model.front = lambda m, tokens, h: torch.cat([h[:8], h[8:] + 0.1 * h[8:].roll(-1, 1)])
    assert leak_test(model, vocab_size=V, n_tokens=T).passed
    report = leak_test(model, vocab_size=V, n_tokens=T, training_batch=9)
    assert {"recording_gradients", "training_mode"} <= found(report)
    assert "of row 8" in report["recording_gradients"].detail


# -- right models that looked as if nothing could be told ------------------------------------------------------------------


def strictly_causal(m, tokens, h):
    """Sums of the tokens before, without the own one: the last token is read by nobody."""
    return h.cumsum(1) - h


def centred(m, tokens, h):
    """Less the mean so far: exactly 0 at the first token, whose logits see nothing."""
    return h - h.cumsum(1) / torch.arange(1, h.shape[1] + 1)[:, None]


@pytest.mark.parametrize("front", [strictly_causal, centred])
def test_a_right_model_in_which_some_logits_see_nothing_passes(front):
    report = leak_test(TinyLM(front=front), vocab_size=V, n_tokens=T, exact=True)
    assert report.passed, report
    assert not report.failed


@pytest.mark.parametrize("leaky", [False, True])
def test_logits_in_memory_that_the_next_call_overwrites(leaky):
    model, held = TinyLM(mix=MIXES["one_key_too_far"] if leaky else None), {}

    def reused(tokens):
        logits = model(tokens)
        held.setdefault(logits.shape, torch.empty_like(logits)).copy_(logits.detach())
        return held[logits.shape]

    report = leak_test(reused, vocab_size=V, n_tokens=T, model=model)
    assert report.passed is not leaky, report
    if leaky:
        assert {"suffix_perturbation", "single_token", "training_mode"} <= found(report)


# -- verdicts ------------------------------------------------------------------------------------------------------------


def test_each_kind_of_fault_has_its_own_verdict():
    assert leak_test(TinyLM(), vocab_size=V, n_tokens=T).verdict == "no leak"
    assert leak_test(PLANTED["one_key_too_far"], vocab_size=V, n_tokens=T).verdict == "leaks"
    draws = leak_test(TinyLM(front=lambda m, tokens, h: F.dropout(h, 0.1)), vocab_size=V, n_tokens=T, cuts=[5])
    assert draws.verdict in ("evaluation draws", "leaks")
    assert leak_test(TinyLM(front=lambda m, tokens, h: h / 0), vocab_size=V, n_tokens=T).verdict == "not finite"
    constant = torch.randn(V)
    dead = leak_test(lambda tokens: constant.expand(*tokens.shape, V), vocab_size=V, n_tokens=T)
    assert dead.verdict == "proves nothing"
    assert not dead.passed
