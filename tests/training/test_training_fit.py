from __future__ import annotations

import json
import math
import shutil
import signal
import sys
import warnings
from functools import partial

import pytest
import torch
from helpers import tiny
from torch.nn import functional as F

from attnzoo.errors import NumericalError, RequestError
from attnzoo.model import CausalLM, build_model
from attnzoo.tasks import Batch, build_task
from attnzoo.training.checkpoints import read_checkpoint
from attnzoo.training.evaluate import evaluate
from attnzoo.training.fit import fit
from attnzoo.training.loggers import JsonLines
from attnzoo.training.stream import StepStream, Window


class Stop(Exception):
    """Stands for a kill."""


class Cut:
    """A task that is interrupted when a given micro-batch is asked for."""

    def __init__(self, task, at):
        self.task, self.at = task, at

    def __getattr__(self, name):
        return getattr(self.task, name)

    def train_batch(self, step, batch_size):
        if step == self.at:
            raise Stop
        return self.task.train_batch(step, batch_size)


def run(cfg, task=None, **kwargs):
    task = task or build_task(cfg.task, cfg.data, cfg.seed)
    model = build_model(cfg, task.vocab_size)
    return model, fit(model, task, cfg.trainer, seed=cfg.seed, **kwargs)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("end", ["killed", "broken"])
def test_a_run_that_ended_early_resumes_to_the_same_bits(tmp_path, optimizer, end):
    """A kill leaves the checkpoint of step 4; an error in the midst of step 8 that of step 7, the draws of step 8 undone."""
    cfg = tiny(
        model={"dropout": 0.2, "attention_dropout": 0.1},
        max_steps=8,
        accumulate=2,
        checkpoint_every=4,
        optimizer=optimizer,
        log_every=3,
    )
    whole, kept = run(cfg, loggers=[JsonLines(tmp_path / "whole.jsonl")])
    task = build_task(cfg.task, cfg.data, cfg.seed)
    checkpoint, killed, lines = tmp_path / "last.ckpt", tmp_path / "killed.ckpt", tmp_path / "metrics.jsonl"
    hook = torch.nn.modules.module.register_module_forward_pre_hook

    def break_in_step_8(module, inputs):
        if isinstance(module, CausalLM) and module.training:
            calls.append(1)
            if len(calls) == 2 * 8:  # its second micro-batch, after dropout of the first was drawn
                shutil.copy(checkpoint, killed)
                raise Stop

    calls = []
    with hook(break_in_step_8), pytest.raises(Stop):
        run(cfg, task, checkpoint=checkpoint, loggers=[JsonLines(lines)])
    start, step = {"killed": (killed, 4), "broken": (checkpoint, 7)}[end]
    assert read_checkpoint(start)["global_step"] == step
    torch.manual_seed(123)  # the global state of the new process is another one
    resumed, after = run(
        cfg, task, checkpoint=checkpoint, resume_from=start, loggers=[JsonLines(lines, keep_until=step)]
    )
    for (name, p), q in zip(whole.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.equal(p, q[1]), name
    assert after.curve == kept.curve
    timeless = ("step_ms", "tokens_per_s", "process_peak_memory_bytes")
    rows = [
        [{k: v for k, v in json.loads(line).items() if k not in timeless} for line in path.read_text().splitlines()]
        for path in (tmp_path / "whole.jsonl", lines)
    ]
    assert rows[0] == rows[1]
    assert [row["step"] for row in rows[0]] == [3, 6, 8]


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    cfg = tiny()
    checkpoint = tmp_path / "last.ckpt"
    one, before = run(cfg, checkpoint=checkpoint)
    two, after = run(cfg, checkpoint=checkpoint, resume_from=checkpoint)
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True))
    assert after.curve == before.curve


@pytest.mark.parametrize("cut", [0, 100, -1])
def test_a_broken_checkpoint_is_a_request_error(tmp_path, cut):
    path = tmp_path / "last.ckpt"
    run(tiny(), checkpoint=path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(RequestError, match=r"last\.ckpt cannot be read"):
        read_checkpoint(path)


def test_something_else_is_no_checkpoint(tmp_path):
    torch.save({"weights": torch.ones(2)}, tmp_path / "x.ckpt")
    with pytest.raises(RequestError, match="lacks global_step, loops, optimizer_states, state_dict"):
        read_checkpoint(tmp_path / "x.ckpt")


class Uneven:
    """Two rows after two others score 1, 7 and 16 tokens, the last padded."""

    name, vocab_size, n_tokens, chance, bytes_per_token, tokenizer = "uneven", 8, 8, None, None, None

    def train_batch(self, step, batch_size):
        draw = torch.Generator().manual_seed(step)
        rows = torch.randint(8, (batch_size, 9), generator=draw)
        targets = rows[:, 1:].clone()
        for row in range(batch_size):
            targets[row, (1, 0, 3, 4, 8, 8)[row % 6] :] = -100
        return Batch(rows[:, :-1].contiguous(), targets)

    def validation_batches(self, batch_size):
        yield self.train_batch(2, batch_size)


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_accumulation_takes_the_mean_over_all_scored_tokens(accumulate):
    """One step of plain gradient descent written out equals the module's gradient."""
    cfg = tiny(model={"n_layers": 2}, max_steps=1, accumulate=accumulate, optimizer="adamw", grad_clip=0.0)
    seen = {}
    task = Uneven()
    model = build_model(cfg, 8)
    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: seen.__setitem__(name, p.grad.clone()))
    twin = build_model(cfg, 8)
    whole = task.train_batch(0, 2 * accumulate)
    batches = [whole.rows(2 * i, 2) for i in range(accumulate)]
    logits = torch.cat([twin(b.tokens) for b in batches])
    F.cross_entropy(
        logits.flatten(0, 1), torch.cat([b.targets for b in batches]).flatten(), ignore_index=-100
    ).backward()
    fit(model, task, cfg.trainer, seed=0)
    for name, p in twin.named_parameters():
        # float32 sums in another order: some 2·8·3 terms of 6e-8 relative rounding, far below the 1/k errors looked for
        torch.testing.assert_close(seen[name], p.grad, atol=1e-6, rtol=1e-4)


def test_a_short_last_window_is_not_scaled_down():
    """Three micro-batches with k = 2: the window of one counts whole (lightning #19987)."""
    task = build_task(tiny().task, tiny().data, 0)
    stream = StepStream(task, 2, 2, 2)
    full, short = stream.window(0), Window.of([task.train_batch(2, 2)])
    assert full.n_scored == sum(int((b.targets != -100).sum()) for b in full.batches)
    assert short.n_scored == int((short.batches[0].targets != -100).sum())


def test_validation_weighs_tokens_not_batches():
    cfg = tiny(task="text")
    task = build_task(cfg.task, cfg.data, 0)
    model = build_model(cfg, task.vocab_size)
    results = [evaluate(model, task, size) for size in (1, 3, 64)]
    assert {r["val_tokens"] for r in results} == {200}
    for r in results:
        assert r["val_loss_nats"] == pytest.approx(results[0]["val_loss_nats"], rel=1e-6)  # float32 sums within a batch
        assert r["val_perplexity"] == pytest.approx(math.exp(r["val_loss_nats"]))
        assert r["val_bits_per_byte"] == pytest.approx(r["val_loss_nats"] / math.log(2))  # a byte a token
    assert "val_accuracy" not in results[0]


def test_validation_leaves_mode_and_randomness_alone():
    cfg = tiny(model={"dropout": 0.5})
    task = build_task(cfg.task, cfg.data, 0)
    model = build_model(cfg, task.vocab_size).train()
    state = torch.get_rng_state()
    first, second = (evaluate(model, task, 2) for _ in range(2))
    assert first == second
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert 0 <= first["val_accuracy"] <= 1


class Poison(torch.nn.Module):
    """Overflows from the given call on, forward or only backward."""

    def __init__(self, inner, from_call, backward):
        super().__init__()
        self.inner, self.from_call, self.backward, self.calls = inner, from_call, backward, 0

    def forward(self, x):
        self.calls += 1
        out = self.inner(x)
        if self.calls < self.from_call:
            return out
        return out + torch.sqrt(out * 0) if self.backward else out * torch.inf


@pytest.mark.parametrize(
    ("backward", "named"),
    [(False, "output of blocks.1.mlp.down"), (True, "gradient of the output of blocks.1.mlp.down")],
)
def test_a_nan_stops_the_run_and_names_the_layer(tmp_path, backward, named):
    cfg = tiny(model={"n_layers": 3}, max_steps=6, eval_every=0, checkpoint_every=1)
    task = build_task(cfg.task, cfg.data, 0)
    model = build_model(cfg, task.vocab_size)
    model.blocks[1].mlp.down = Poison(model.blocks[1].mlp.down, from_call=3, backward=backward)
    with pytest.raises(NumericalError, match=rf"step 2 is not finite: first in the {named}"):
        fit(model, task, cfg.trainer, seed=0, checkpoint=tmp_path / "last.ckpt")
    assert all(p.isfinite().all() for p in model.parameters())
    assert read_checkpoint(tmp_path / "last.ckpt")["global_step"] == 2  # the bad state was not saved


def test_training_says_nothing_unasked(tmp_path, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tiny(), checkpoint=tmp_path / "last.ckpt", loggers=[JsonLines(tmp_path / "m.jsonl")])
    assert capfd.readouterr() == ("", "")


def test_progress_lines_where_there_is_no_terminal(capfd):
    run(tiny(progress=True), title="sdpa · recall")
    err = capfd.readouterr().err.splitlines()
    assert [line.split(" · loss")[0] for line in err] == [f"sdpa · recall: step {s}/6" for s in (2, 4, 6)]
    assert ["validation accuracy" in line for line in err] == [False, True, True]  # the last that there was
    assert "tokens/s" in err[-1]


def test_ctrl_c_stays_a_keyboard_interrupt():
    before = signal.getsignal(signal.SIGINT)

    class Pressed(Cut):
        def train_batch(self, step, batch_size):
            if step == self.at:
                raise KeyboardInterrupt
            return self.task.train_batch(step, batch_size)

    cfg = tiny()
    with pytest.raises(KeyboardInterrupt):
        run(cfg, Pressed(build_task(cfg.task, cfg.data, 0), at=2))
    assert signal.getsignal(signal.SIGINT) is before


def test_compiled_training_equals_eager_within_rounding(monkeypatch):
    real, asked = partial(torch.compile, backend="aot_eager"), []  # no C++ compiler, seconds less
    monkeypatch.setattr(torch, "compile", lambda function: asked.append(function) or real(function))
    cfg = tiny(max_steps=3)
    eager, a = run(cfg)
    assert asked == []
    compiled, b = run(cfg, compiled=True)
    assert asked == [compiled.forward]
    assert list(compiled.state_dict()) == list(eager.state_dict())
    assert a.curve[-1]["val_loss_nats"] == pytest.approx(b.curve[-1]["val_loss_nats"], rel=1e-3)


def test_bf16_trains_float32_parameters_to_nearly_the_same_loss():
    cfg = tiny(max_steps=3)
    _, exact = run(cfg)
    model, rounded = run(cfg, precision="bf16")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not model.training
    a, b = (fitted.curve[-1]["val_loss_nats"] for fitted in (exact, rounded))
    assert a != b
    assert a == pytest.approx(b, rel=0.01)  # bfloat16 keeps 8 bits; the loss is a mean over many such roundings


def test_a_terminal_gets_a_bar(monkeypatch):
    """In a pseudo-terminal of its own."""
    import os
    import pty

    here = os.path.dirname(__file__)
    code = (
        f"import sys; sys.path.insert(0, {here!r}); from helpers import tiny; from attnzoo.model import build_model\n"
        "from attnzoo.tasks import build_task; from attnzoo.training.fit import fit\n"
        "cfg = tiny(progress=True); task = build_task(cfg.task, cfg.data, 0)\n"
        "fit(build_model(cfg, task.vocab_size), task, cfg.trainer, seed=0, title='sdpa')"
    )
    screen = bytearray()

    def read(descriptor):
        data = os.read(descriptor, 1024)
        screen.extend(data)
        return data

    monkeypatch.setenv("COLUMNS", "150")
    status = pty.spawn([sys.executable, "-c", code], read, lambda _: b"")
    assert status == 0
    assert b"6/6" in screen
    assert b"tokens/s" in screen
