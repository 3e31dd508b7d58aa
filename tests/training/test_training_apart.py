"""Training against evaluation on the same batches: what a reader is told, and what nobody is accused of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers import tiny
from torch.nn import functional as F

from attnzoo.model import build_model
from attnzoo.tasks import build_task
from attnzoo.training import run as run_module
from attnzoo.training import train
from attnzoo.training.after import leaks
from attnzoo.training.apart import _last_logged, apart, far_below
from attnzoo.training.run import warn


def unmasked(model, when):
    """The model with attention that drops its mask where ``when`` (attention, q) holds."""
    for attention in model.attention_modules():
        attend = attention.attend

        def dropped(q, k, v, *rest, attend=attend, attention=attention):
            return F.scaled_dot_product_attention(q, k, v) if when(attention, q) else attend(q, k, v, *rest)

        attention.attend = dropped
    return model


def parts(**trainer):
    cfg = tiny(task="text", model={"n_layers": 2, "d_model": 32}, **trainer)
    task = build_task(cfg.task, cfg.data, cfg.seed)
    return cfg, task, build_model(cfg, task.vocab_size)


def said(model, task, cfg, logged, validation):
    return apart(model, task, cfg.trainer, {"train_loss_nats": logged, "val_loss_nats": validation}, "cpu", "fp32")


def test_a_model_that_trains_as_it_is_evaluated_gets_no_sentence():
    cfg, task, model = parts()
    assert said(model, task, cfg, 5.5, 5.6) == []
    assert model.training  # as it was


def test_training_that_sees_more_than_evaluation_is_told():
    cfg, task, model = parts(batch_size=8)
    unmasked(model, lambda a, q: a.training and torch.is_grad_enabled())
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(60):  # only the loss while it trains falls
        batch = task.train_batch(step, 8)
        loss = F.cross_entropy(model(batch.tokens).flatten(0, 1), batch.targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    (sentence,) = said(model, task, cfg, loss.item(), loss.item() + 0.1)
    assert "computes something else while it trains" in sentence


def test_a_logged_loss_that_no_pass_reproduces_is_told():
    cfg, task, model = parts()
    (sentence,) = said(model, task, cfg, 0.14, 5.28)
    assert "0.140 nats logged" in sentence
    assert "computes something else" in sentence


def test_overfitting_is_called_so(monkeypatch):
    cfg, task, model = parts()
    monkeypatch.setattr("attnzoo.training.apart._again", lambda *_: (0.2, 0.2, 0.01))
    (sentence,) = said(model, task, cfg, 0.2, 3.0)
    assert "overfitting" in sentence
    assert "leak" not in sentence
    assert said(model, task, cfg, 2.6, 3.0) == []


def test_dropout_is_no_difference():
    cfg = tiny(task="text", model={"dropout": 0.5})
    task = build_task(cfg.task, cfg.data, cfg.seed)
    assert said(build_model(cfg, task.vocab_size), task, cfg, 5.5, 5.6) == []


@pytest.mark.parametrize(
    ("a", "b", "far"), [(0.14, 5.28, True), (2.0, 3.0, False), (0.01, 0.3, False), (float("nan"), 3, False)]
)
def test_far_below(a, b, far):
    assert far_below(a, b) is far


@pytest.mark.parametrize(
    ("last", "every", "steps"),
    [(6, 2, [4, 5]), (7, 3, [6]), (9, 0, [5, 6, 7, 8]), (1, 1, [0]), (40, 10, [36, 37, 38, 39])],
)
def test_the_batches_are_those_of_the_last_logged_loss(last, every, steps):
    assert _last_logged(replace(tiny().trainer, max_steps=last, log_every=every)) == steps


def test_a_warning_stands_once_in_the_record():
    record = run_module.Record()
    warn(record, [])
    assert "warnings" not in record
    warn(record, ["a", "b"])
    warn(record, ["a"])
    assert record.warnings == ["a", "b"]


# -- the leak tests of a run ---------------------------------------------------------------------------------------------


def leak_of(cfg, task, model, precision="fp32"):
    record = leaks(model, task, cfg, "cpu", precision)
    return record, {t["name"] for t in record["tests"] if not (t["passed"] or t["skipped"])}


def test_they_are_at_the_trained_length_batch_and_precision():
    cfg, task, model = parts(batch_size=5)
    record, failed = leak_of(cfg, task, model)
    assert not failed
    assert f"T = {task.n_tokens}," in record["setting"]
    tests = {t["name"]: t for t in record["tests"]}
    assert "batches of 5" in tests["training_mode"]["detail"]
    assert {"entropy_canary", "entropy_canary_trained"} <= set(tests)
    for when in (
        lambda a, q: a.training and q.shape[2] >= task.n_tokens,
        lambda a, q: a.training and q.shape[0] >= 5,
        lambda a, q: a.training and torch.is_grad_enabled(),
    ):
        assert "training_mode" in leak_of(cfg, task, unmasked(parts()[2], when))[1]


def test_a_mask_that_autocast_drops_is_seen_in_bf16_alone():
    cfg, task, model = parts()
    model = unmasked(model, lambda a, q: torch.is_autocast_enabled("cpu"))
    assert not leak_of(cfg, task, model)[1]
    assert "suffix_perturbation" in leak_of(cfg, task, model, "bf16")[1]


def test_the_canaries_run_under_autocast_and_at_their_lengths(monkeypatch):
    seen = []

    def watched(make, vocab_size, **how):
        with how["within"]():
            seen.append((how["n_tokens"], how.get("batch_size"), torch.is_autocast_enabled("cpu")))
        return real(make, vocab_size, **{**how, "steps": 2})

    from attnzoo.training import after

    real = after.entropy_canary
    monkeypatch.setattr(after, "entropy_canary", watched)
    cfg, task, model = parts(batch_size=3)
    monkeypatch.setattr(type(task), "n_tokens", 40, raising=False)
    leaks(model, build_task(replace(cfg.task, n_tokens=40), cfg.data, 0), cfg, "cpu", "bf16")
    assert seen == [(32, None, True), (40, 3, True)]


def test_decoding_that_differs_is_a_warning_and_no_leak(tmp_path, monkeypatch):
    right = run_module.build_model

    def slipping(cfg, vocab_size):
        model = right(cfg, vocab_size)
        for attention in model.attention_modules():
            attend = attention.attend_cached
            attention.attend_cached = lambda q, k, v, *rest, attend=attend: 1.01 * attend(q, k, v, *rest)
        return model

    monkeypatch.setattr(run_module, "build_model", slipping)
    cfg = tiny(tmp_path / "run")
    cfg.measure.leak = True
    record = train(cfg)
    assert record.leak.passed
    assert record.leak.verdict == "decoding differs"
    assert [w for w in record.warnings if w.startswith("decoding differs")]

    from attnzoo.commands import failed
    from attnzoo.comparison.run import summary_line

    assert failed(record)
    assert "decoding differs" in summary_line(record)
    assert "LEAK" not in summary_line(record)
