"""What training does against the same written out plainly, and what the numbers it reports must be."""

from __future__ import annotations

import json
import math

import pytest
import torch
from helpers import tiny
from torch.nn import functional as F

from attnzoo.model import build_model
from attnzoo.optimizers.muon import orthogonalise
from attnzoo.tasks import Batch, build_task
from attnzoo.training import load_run, train
from attnzoo.training import run as run_module
from attnzoo.training.evaluate import evaluate
from attnzoo.training.fit import Fitted, fit

STEPS, ACCUMULATE, WARMUP, DECAY, CLIP = 7, 2, 2, 0.4, 0.05
RATES = {"muon_lr": 0.02, "adamw_lr": 0.004, "weight_decay": 0.3, "betas": (0.8, 0.93)}


def configured(**changes):
    cfg = {
        "model": {"short_conv": 3, "tie_embeddings": False}, "max_steps": STEPS, "accumulate": ACCUMULATE, "log_every": 1,
        "warmup_steps": WARMUP, "decay_fraction": DECAY, "grad_clip": CLIP, **RATES,
    }  # fmt: skip
    return tiny(**{**cfg, **changes})


def factor(step):
    """Warm-up over WARMUP steps, linear decay over the last DECAY of them, as the docstrings say."""
    return min(1.0, (step + 1) / (WARMUP + 1), (STEPS - step) / (DECAY * STEPS))


def plainly(model, task, optimizer, batch_size):
    """AdamW and Muon by their equations; returns norms and losses of each step."""
    state = {name: [torch.zeros_like(p), torch.zeros_like(p)] for name, p in model.named_parameters()}
    norms, losses = [], []
    for step in range(STEPS):
        whole = task.train_batch(step, ACCUMULATE * batch_size)
        targets = whole.targets.flatten()
        logits = model(whole.tokens).flatten(0, 1)
        loss = F.cross_entropy(logits, targets, ignore_index=-100)
        parameters = dict(model.named_parameters())
        gradients = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
        norm = torch.sqrt(sum(g.square().sum() for g in gradients.values()))
        norms.append(float(norm.detach()))
        losses.append(float(loss.detach()))
        clip, lr = min(1.0, CLIP / float(norm)), factor(step)
        for name, p in parameters.items():
            g, (m, v) = gradients[name] * clip, state[name]
            matrix = p.dim() == 2 and "conv" not in name
            with torch.no_grad():
                if optimizer == "muon" and matrix and name.startswith("blocks"):
                    m.lerp_(g, 0.05)
                    ahead = g.lerp(m, 0.95)
                    update = orthogonalise(ahead[None], (3.4445, -4.7750, 2.0315), 5, 1e-7)[0]
                    p.mul_(1 - lr * RATES["muon_lr"] * RATES["weight_decay"])
                    p.sub_(lr * RATES["muon_lr"] * 0.2 * math.sqrt(max(p.shape)) * update)
                    continue
                b1, b2 = RATES["betas"]
                rate = lr * RATES["adamw_lr"] * (10 if "conv" in name else 1)
                m.lerp_(g, 1 - b1)
                v.lerp_(g * g, 1 - b2)
                p.mul_(1 - rate * (RATES["weight_decay"] if matrix else 0))
                p.sub_(rate * (m / (1 - b1 ** (step + 1))) / ((v / (1 - b2 ** (step + 1))).sqrt() + 1e-8))
    return norms, losses


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_is_the_plain_loop(tmp_path, optimizer):
    """Clipping, accumulation, groups, decay, warm-up, schedule, the order of it all: each edit of one moves a weight."""
    cfg = configured(optimizer=optimizer, folder=tmp_path / "run")
    cfg.trainer.options = {
        key: value for key, value in cfg.trainer.options.items() if (optimizer, key) != ("adamw", "muon_lr")
    }
    record = train(cfg)
    _, trained, task = load_run(tmp_path / "run")
    plain = build_model(cfg, task.vocab_size)
    start = [p.detach().clone() for p in plain.parameters()]
    norms, losses = plainly(plain, task, optimizer, cfg.trainer.batch_size)
    moved = max(float((p - s).abs().max()) for p, s in zip(plain.parameters(), start, strict=True))
    for (name, p), q in zip(plain.named_parameters(), trained.parameters(), strict=True):
        # gradients agree to some 1e-5 (float32 sums in another order), which Adam's division by their own size keeps
        torch.testing.assert_close(q, p, atol=2e-3 * moved, rtol=0, msg=lambda m, name=name: f"{name}: {m}")
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["grad_norm"] for row in rows] == pytest.approx(norms, rel=1e-3)  # before clipping
    assert [row["train_loss_nats"] for row in rows] == pytest.approx(losses, rel=1e-4)
    assert [row["lr_factor"] for row in rows] == pytest.approx([factor(step) for step in range(STEPS)])
    assert [row["tokens"] for row in rows] == [n * ACCUMULATE * 2 * 16 for n in range(1, STEPS + 1)]
    assert record.quality.tokens_seen == record.quality.curve[-1][0] == rows[-1]["tokens"]
    assert record.quality.train_loss_nats == rows[-1]["train_loss_nats"]
    for row in rows:
        assert row["tokens_per_s"] * row["step_ms"] / 1e3 == pytest.approx(ACCUMULATE * 2 * 16, rel=1e-6)


def test_a_logged_loss_is_the_mean_since_the_last(tmp_path):
    for name, every in (("one", 1), ("three", 3)):
        train(configured(folder=tmp_path / name, log_every=every, eval_every=0))
    one, three = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "three")
    )
    losses = [row["train_loss_nats"] for row in one]
    assert [row["step"] for row in three] == [3, 6, 7]
    means = [sum(losses[:3]) / 3, sum(losses[3:6]) / 3, losses[6]]
    assert [row["train_loss_nats"] for row in three] == pytest.approx(means, rel=1e-6)
    assert ["val_loss_nats" in row for row in three] == [False, False, True]


@pytest.mark.parametrize(("eval_every", "scored"), [(0, [6]), (1, [1, 2, 3, 4, 5, 6]), (4, [4, 6])])
def test_validation_is_when_it_is_due(tmp_path, eval_every, scored):
    record = train(tiny(tmp_path / "run", eval_every=eval_every, log_every=5))
    assert [tokens for tokens, _ in record.quality.curve] == [step * 2 * 16 for step in scored]
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "val_loss_nats" in row] == scored
    assert [row["step"] for row in rows if "train_loss_nats" in row] == [5, 6]


def test_the_last_validation_is_reported_not_the_best():
    points = [
        {
            "step": n,
            "tokens": 32 * n,
            "val_loss_nats": loss,
            "val_accuracy": loss / 9,
            "val_perplexity": 1.0,
            "val_tokens": 7,
        }
        for n, loss in ((1, 3.0), (2, 1.0), (3, 2.0))
    ]
    task = build_task(tiny().task, tiny().data, 0)
    found = run_module.quality(Fitted(points, 96, {"train_loss_nats": 1.5}, "k"), task)
    assert (found["val_loss_nats"], found["task_accuracy"]) == (2.0, {"recall": 2.0 / 9})
    assert found["curve"] == [[32, 3.0], [64, 1.0], [96, 2.0]]
    assert (found["tokens_seen"], found["train_loss_nats"]) == (96, 1.5)
    assert found["uniform_loss_nats"] == pytest.approx(math.log(8))


class Known:
    """Four bytes a token, one batch whose every second target is scored; the model is wrong at some of them."""

    name, vocab_size, n_tokens, chance, bytes_per_token, tokenizer = "known", 8, 6, 0.125, 4.0, None

    def validation_batches(self, batch_size):
        draw = torch.Generator().manual_seed(1)
        tokens, targets = torch.randint(8, (5, 6), generator=draw), torch.randint(8, (5, 6), generator=draw)
        targets[:, ::2] = -100
        for start in range(0, 5, batch_size):
            yield Batch(tokens[start : start + batch_size], targets[start : start + batch_size])


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_quality_by_hand(batch_size):
    task, model = Known(), build_model(tiny(model={"dropout": 0.5}), 8).train()
    (batch,) = task.validation_batches(5)
    logits = model.eval()(batch.tokens)[:, 1::2].double()
    targets = batch.targets[:, 1::2]
    losses = -logits.log_softmax(-1).gather(-1, targets[..., None])
    found = evaluate(model.train(), task, batch_size)
    assert model.training
    nats = float(losses.mean().detach())
    assert found["val_tokens"] == 15
    assert found["val_loss_nats"] == pytest.approx(nats, rel=1e-5)
    assert found["val_perplexity"] == pytest.approx(math.exp(nats), rel=1e-5)
    assert found["val_bits_per_byte"] == pytest.approx(nats / math.log(2) / 4, rel=1e-5)  # not a token
    assert found["val_accuracy"] == pytest.approx(float((logits.argmax(-1) == targets).double().mean()))
    assert found["val_accuracy"] > 0


def test_seeds_reach_values_data_and_dropout(tmp_path):
    cfg = tiny(model={"dropout": 0.5}, seed=0)
    task = build_task(cfg.task, cfg.data, 0)
    assert not torch.equal(task.train_batch(0, 2).tokens, build_task(cfg.task, cfg.data, 1).train_batch(0, 2).tokens)
    losses = {}
    for seed in (0, 0, 1):
        model = build_model(cfg, task.vocab_size)
        losses.setdefault(seed, []).append(fit(model, task, cfg.trainer, seed=seed).curve[-1]["val_loss_nats"])
    assert losses[0][0] == losses[0][1] != losses[1][0]
    one, two = (train(tiny(tmp_path / str(seed), seed=seed)) for seed in (3, 4))
    assert one.quality.val_loss_nats != two.quality.val_loss_nats
    assert (one.seed, two.seed) == (3, 4)
    first = build_model(tiny(seed=3), 8).state_dict()
    assert any(not torch.equal(t, build_model(tiny(seed=4), 8).state_dict()[name]) for name, t in first.items())


def test_training_leaves_the_callers_draws_alone_and_takes_its_threads(tmp_path):
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    try:
        record = train(tiny(tmp_path / "run", model={"dropout": 0.3}, threads=2))
        assert record.environment.threads == record.starts[0]["threads"] == torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state)


def test_precision_and_dropout_reach_the_training(monkeypatch):
    seen = []
    real = F.cross_entropy

    def cross_entropy(logits, *arguments, **kwargs):
        if torch.is_grad_enabled():  # validation adds up its losses outside of autocast, in float32
            seen.append(torch.is_autocast_enabled("cpu"))
        return real(logits, *arguments, **kwargs)

    monkeypatch.setattr(F, "cross_entropy", cross_entropy)
    for precision, expected in (("fp32", {False}), ("bf16", {True})):
        seen.clear()
        cfg = tiny(max_steps=2)
        task = build_task(cfg.task, cfg.data, 0)
        fit(build_model(cfg, task.vocab_size), task, cfg.trainer, seed=0, precision=precision)
        assert set(seen) == expected


@pytest.mark.parametrize(("every", "saved"), [(0, [6]), (2, [2, 4, 6]), (4, [4, 6])])
def test_checkpoints_are_written_when_due_and_after_the_step(tmp_path, monkeypatch, every, saved):
    from attnzoo.training.checkpoints import AtomicCheckpointIO

    written = []
    real = AtomicCheckpointIO.save_checkpoint

    def save(self, checkpoint, path, storage_options=None):
        written.append((checkpoint["global_step"], {k: v.clone() for k, v in checkpoint["state_dict"].items()}))
        real(self, checkpoint, path, storage_options)

    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", save)
    train(tiny(tmp_path / "run", checkpoint_every=every))
    assert [step for step, _ in written] == saved
    _, model, _ = load_run(tmp_path / "run")
    for name, tensor in model.state_dict().items():
        assert torch.equal(written[-1][1][f"model.{name}"], tensor)


def test_numbers_reach_the_table_and_the_folder(tmp_path):
    cfg = tiny(tmp_path / "run")
    cfg.logger.csv = True
    train(cfg)
    lines = (tmp_path / "run/metrics.csv").read_text().splitlines()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 1 + len(rows)
    assert [line.split(",")[0] for line in lines[1:]] == [str(row["step"]) for row in rows] == ["2", "3", "4", "6"]
    assert "val_loss_nats" in lines[0]


def test_speed_is_of_the_steps_since_the_last_log(tmp_path, monkeypatch):
    """By a clock on which step n takes n seconds, and a validation or a checkpoint, which count in none, a thousand."""
    from types import SimpleNamespace

    from attnzoo.training import callbacks, stopwatch
    from attnzoo.training.checkpoints import AtomicCheckpointIO
    from attnzoo.training.optim import Together

    now, steps = [0.0], []

    def passing(real, seconds):
        def call(*words, **how):
            now[0] += seconds()
            return real(*words, **how)

        return call

    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(Together, "step", passing(Together.step, lambda: steps.append(1) or len(steps)))
    monkeypatch.setattr(callbacks, "evaluate", passing(callbacks.evaluate, lambda: 1000))
    save = passing(AtomicCheckpointIO.save_checkpoint, lambda: 1000)
    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", save)
    train(tiny(tmp_path / "run", max_steps=7, log_every=3, eval_every=2, checkpoint_every=2))
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "step_ms" in row]
    assert [row["step_ms"] for row in rows] == [2000, 5000, 7000]
    assert [row["tokens_per_s"] for row in rows] == pytest.approx([32 / 2, 32 / 5, 32 / 7])


def test_the_seed_of_a_run_is_that_of_its_data(tmp_path, monkeypatch):
    seeds, real = [], run_module.build_task

    def build(task, data, seed):
        seeds.append(seed)
        return real(task, data, seed)

    monkeypatch.setattr(run_module, "build_task", build)
    train(tiny(tmp_path / "run", seed=7))
    assert seeds == [7]
