"""fp16 with a scaler of losses, on a CPU, which computes it slowly: refused there for a person, and exact for a test."""

from functools import partial

import pytest
import torch
from helpers import tiny

from attnzoo.errors import NumericalError, RequestError
from attnzoo.measure.environment import resolve_precision
from attnzoo.model import build_model
from attnzoo.tasks import build_task
from attnzoo.training import module as training_module
from attnzoo.training.fit import fit


class Stop(Exception):
    """Stands for a kill."""


def run(cfg, stops_at=None, **how):
    task = build_task(cfg.task, cfg.data, cfg.seed)
    if stops_at is not None:
        draw = task.train_batch

        def until(step, batch_size):
            if step == stops_at:
                raise Stop
            return draw(step, batch_size)

        task.train_batch = until
    model = build_model(cfg, task.vocab_size)
    return model, fit(model, task, cfg.trainer, seed=cfg.seed, precision="fp16", **how)


@pytest.fixture
def first_scale(monkeypatch):
    """Sets the scale that a run begins with."""

    def put(scale):
        monkeypatch.setattr(torch.amp, "GradScaler", partial(scaler, init_scale=scale))

    scaler = torch.amp.GradScaler
    return put


def test_it_trains_as_float32_does():
    cfg = tiny(max_steps=6)
    task = build_task(cfg.task, cfg.data, cfg.seed)
    exact = fit(build_model(cfg, task.vocab_size), task, cfg.trainer, seed=0)
    model, rounded = run(cfg)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    a, b = (fitted.curve[-1]["val_loss_nats"] for fitted in (exact, rounded))
    assert a != b
    assert a == pytest.approx(b, rel=2e-3)  # 11 bits; the loss is a mean over many such roundings
    assert rounded.latest["loss_scale"] == 2.0**16
    assert rounded.latest["skipped_steps"] == 0


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_steps_that_overflow_change_nothing_and_are_counted(first_scale, optimizer):
    """Gradients of logits are near 1/32 a token: scaled by 2^40 they overflow until some halvings have passed."""
    first_scale(2.0**40)
    cfg = tiny(max_steps=4, optimizer=optimizer, eval_every=0, log_every=1)
    before = build_model(cfg, build_task(cfg.task, cfg.data, 0).vocab_size).state_dict()
    model, fitted = run(cfg)
    assert fitted.latest["skipped_steps"] == 4
    assert fitted.latest["loss_scale"] == 2.0**36
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    cfg.trainer.max_steps = 40
    model, fitted = run(cfg)
    assert 0 < fitted.latest["skipped_steps"] < 36
    assert fitted.latest["loss_scale"] == 2.0 ** (40 - fitted.latest["skipped_steps"])
    assert all(p.isfinite().all() for p in model.parameters())
    assert not all(torch.equal(p, before[name]) for name, p in model.state_dict().items())


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_run_that_goes_on_has_the_scale_the_count_and_the_bits(first_scale, tmp_path, optimizer):
    first_scale(2.0**25)
    cfg = tiny(max_steps=16, optimizer=optimizer, eval_every=0, log_every=1)
    whole, expected = run(cfg)
    assert 0 < expected.latest["skipped_steps"] < 12
    cfg.trainer.checkpoint_every = 4
    with pytest.raises(Stop):
        run(cfg, stops_at=6, checkpoint=tmp_path / "last.ckpt")
    first_scale(2.0**10)  # of the process that goes on; what counts is the checkpoint's
    resumed, fitted = run(cfg, resume_from=tmp_path / "last.ckpt")
    assert all(torch.equal(p, whole.state_dict()[name]) for name, p in resumed.state_dict().items())
    assert fitted.latest["loss_scale"] == expected.latest["loss_scale"]
    assert fitted.latest["skipped_steps"] == expected.latest["skipped_steps"]


def test_a_gradient_that_no_scale_makes_finite_ends_the_run(monkeypatch):
    monkeypatch.setattr(training_module, "MOST_SKIPPED", 3)
    cfg = tiny(max_steps=8)
    task = build_task(cfg.task, cfg.data, cfg.seed)
    model = build_model(cfg, task.vocab_size)
    model.embedding.weight.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(NumericalError, match="step 3 is not finite"):
        fit(model, task, cfg.trainer, seed=0, precision="fp16")


def test_it_is_refused_on_a_cpu():
    with pytest.raises(RequestError, match="precision=fp16: it is for CUDA, and the device is cpu"):
        resolve_precision("fp16", "cpu")
