"""Small parts by themselves: when something is due, the mean of the validation, random states, what a GPU changes."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest
import torch
from helpers import tiny
from torch.nn import functional as F

from attnzoo.errors import NumericalError, RequestError
from attnzoo.measure.arithmetic import autocast
from attnzoo.model import build_model
from attnzoo.tasks import Batch, build_task
from attnzoo.training import callbacks
from attnzoo.training.callbacks import StopAtNonFinite, due, peak_memory
from attnzoo.training.checkpoints import Checkpoints, RandomState, random_state, read_checkpoint
from attnzoo.training.evaluate import evaluate, summed_loss
from attnzoo.training.module import TrainingModule
from attnzoo.training.optim import build_optimizer
from attnzoo.training.stopping import Stopping
from attnzoo.training.stopwatch import Stopwatch
from attnzoo.training.stream import StepStream, to_device

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_due_is_every_nth_step_and_the_last():
    assert [step for step in range(1, 8) if due(step, 3, 7)] == [3, 6, 7]
    assert [step for step in range(1, 8) if due(step, 0, 7)] == [7]


class Uneven:
    """Two batches that score 1 and 15 tokens."""

    bytes_per_token, chance = None, 0.125

    def batches(self):
        rows = torch.randint(8, (4, 9), generator=torch.Generator().manual_seed(0))
        targets = rows[:, 1:].clone()
        targets[:2].view(-1)[1:] = -100
        targets[2:].view(-1)[15:] = -100
        return [Batch(rows[i : i + 2, :-1].contiguous(), targets[i : i + 2]) for i in (0, 2)]

    def validation_batches(self, batch_size):
        return self.batches()


def test_validation_is_the_mean_over_scored_tokens_without_dropout():
    task, model = Uneven(), build_model(tiny(model={"dropout": 0.5}), 8).train()
    found = evaluate(model, task, 2)
    losses, right = [], 0
    with torch.no_grad():
        for batch in task.batches():
            logits = model.eval()(batch.tokens)
            for row, targets in zip(logits.double().log_softmax(-1), batch.targets, strict=True):
                losses += [-float(p[t]) for p, t in zip(row, targets, strict=True) if t >= 0]
                right += sum(int(p.argmax() == t) for p, t in zip(row, targets, strict=True) if t >= 0)
    assert found["val_tokens"] == len(losses) == 16
    assert found["val_loss_nats"] == pytest.approx(sum(losses) / 16, rel=1e-5)  # float32 logits
    assert found["val_accuracy"] == right / 16


def test_random_states_are_restored_before_the_first_step():
    with torch.random.fork_rng(devices=[]):
        callback = RandomState(3)
        callback.on_train_batch_start()
        kept = callback.state_dict()
        expected = torch.rand(3), random.random()
        assert torch.equal(callback.state_dict()["torch"], kept["torch"])  # within a step: that of its beginning
        again = RandomState(3)
        again.load_state_dict(kept)
        again.on_train_start(None, None)
        assert torch.equal(torch.rand(3), expected[0])
        assert random.random() == expected[1]


def test_random_states_start_from_the_seed_and_hold_those_of_every_gpu(monkeypatch):
    before = random.getstate()
    with torch.random.fork_rng(devices=[]):
        drawn = []
        for seed in (3, 3, 4):
            RandomState(seed).on_train_start(None, SimpleNamespace(device=CPU))
            drawn.append((float(torch.rand(())), random.random()))
    random.setstate(before)
    assert drawn[0] == drawn[1]
    assert not set(drawn[0]) & set(drawn[2])
    put_back = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [torch.tensor([1]), torch.tensor([2])])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", put_back.extend)
    callback = RandomState(3)
    callback.load_state_dict(random_state())
    callback.on_train_start(None, None)
    assert [int(state) for state in put_back] == [1, 2]


def at(step, **more):
    return SimpleNamespace(global_step=step, should_stop=False, **more)


@pytest.mark.parametrize(("device", "looked"), [(CUDA, [3, 6, 7]), (CPU, [])])
def test_a_gpu_is_asked_for_a_nan_when_a_loss_is_logged(device, looked):
    """On a CPU each step looks before its update."""
    steps, cfg = [], tiny(max_steps=7, log_every=3).trainer
    for step in range(1, 8):
        module = SimpleNamespace(device=device, cfg=cfg, assert_finite=lambda step=step: steps.append(step))
        StopAtNonFinite().on_train_batch_end(at(step), module)
    assert steps == looked


def test_peak_memory_is_of_this_process_in_bytes(monkeypatch):
    assert 5e7 < peak_memory(CPU)["process_peak_memory_bytes"] < 1e12  # torch alone takes a hundred megabytes
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7 + device.index)
    assert peak_memory(torch.device("cuda", 1)) == {"peak_memory_bytes": 8}
    itself = callbacks.resource.RUSAGE_SELF
    monkeypatch.setattr(
        callbacks.resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=3 if who == itself else 9)
    )
    for platform, expected in (("linux", 3072), ("darwin", 3)):
        monkeypatch.setattr(callbacks.sys, "platform", platform)
        assert peak_memory(CPU) == {"process_peak_memory_bytes": expected}


def test_a_checkpoint_is_of_whole_finite_steps_and_written_once(tmp_path):
    stop, events = Stopping(), []
    cfg = tiny(max_steps=7, checkpoint_every=4).trainer

    def trainer(step, **more):
        return at(step, save_checkpoint=lambda path: events.append((step, path.name, stop.shielded)), **more)

    def module(whole=True):
        looked = {"assert_finite": lambda: events.append("looked"), "whole": lambda step: whole}
        return SimpleNamespace(cfg=cfg, stopwatch=Stopwatch(), **looked)

    def ended(callback, step, whole=True):
        before = len(events)
        callback.on_exception(trainer(step), module(whole), ZeroDivisionError())
        return len(events) - before

    callback = Checkpoints(tmp_path / "x.ckpt", stop, lambda step, kernel: {})
    callback.on_train_start(trainer(0))
    for step in range(1, 6):
        callback.on_train_batch_end(trainer(step), module())
    assert events == ["looked", (4, "x.ckpt", True)]  # looked at before, and not stopped within the write
    assert not stop.shielded
    stopping = trainer(5)
    stopping.should_stop = True
    callback.on_train_batch_end(stopping, module())
    assert events[2:] == ["looked", (5, "x.ckpt", True)]
    assert [ended(callback, 5), ended(callback, 6, whole=False), ended(callback, 6), ended(callback, 6)] == [0, 0, 1, 0]
    assert ended(Checkpoints(tmp_path / "x.ckpt", stop, lambda step, kernel: {}), 0) == 0
    resumed = Checkpoints(tmp_path / "x.ckpt", stop, lambda step, kernel: {})
    resumed.on_train_start(trainer(4))
    assert [ended(resumed, 4), ended(resumed, 5)] == [0, 1]
    for error in (RequestError("full"), MemoryError()):  # what broke the run is what is told

        def broken(path, error=error):
            raise error

        resumed.on_exception(at(6, save_checkpoint=broken), module(), ZeroDivisionError())

    def bad():
        raise NumericalError("step 7")

    with pytest.raises(NumericalError):
        callback.on_train_batch_end(trainer(7), SimpleNamespace(cfg=cfg, assert_finite=bad))
    assert events[-1] != (7, "x.ckpt", True)


class Runs:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


def test_a_checkpoint_runs_no_code(tmp_path):
    torch.save({"state_dict": Runs(tmp_path / "ran")}, tmp_path / "x.ckpt")
    with pytest.raises(RequestError, match="cannot be read"):
        read_checkpoint(tmp_path / "x.ckpt")
    assert not (tmp_path / "ran").exists()


def test_a_step_that_is_not_finite_and_all_after_it_change_nothing():
    """As on a GPU, which is asked later: the first bad step is the one that is named."""
    cfg = tiny().trainer
    task = build_task(tiny().task, tiny().data, 0)
    model = build_model(tiny(), task.vocab_size)
    module = TrainingModule(model, cfg, StepStream(task, 2, 1, 6), "fp32")
    module._trainer = SimpleNamespace(precision_plugin=None)  # no scaler of losses
    assert math.isnan(module.take_loss()["grad_norm"])
    optimizer, skipped = build_optimizer(model, cfg), []
    for step, value in enumerate((1.0, math.nan, 2.0, math.inf)):
        module._skip_unless_finite(torch.tensor(value), step, optimizer)
        skipped.append(float(optimizer.skip))
    assert skipped == [0.0, 1.0, 1.0, 1.0]
    assert [module.whole(step) for step in (0, 1, 2)] == [True, True, False]
    with pytest.raises(NumericalError, match="step 1 is not finite: not reproduced when the step was repeated"):
        module.assert_finite()
    module.updating = True
    assert not module.whole(1)


def masked_batch():
    draw = torch.Generator().manual_seed(0)
    tokens, targets = (torch.randint(8, (2, 6), generator=draw) for _ in range(2))
    targets[0, :2] = -100
    return Batch(tokens, targets, torch.tensor([[0, 0, 0, 1, 1, 1]] * 2), torch.arange(6) < torch.tensor([[6], [4]]))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_loss_is_of_the_masked_model_in_float32(precision):
    model, batch = build_model(tiny(), 8).eval(), masked_batch()
    with torch.no_grad(), autocast(precision, "cpu"):
        loss, logits = summed_loss(model, batch)
        parts = ({}, {"documents": batch.documents}, {"key_padding": batch.key_padding})
        whole = model(batch.tokens, documents=batch.documents, key_padding=batch.key_padding)
        assert torch.equal(logits, whole)
        assert not any(torch.equal(whole, model(batch.tokens, **part)) for part in parts)
    exact = F.cross_entropy(whole.double().flatten(0, 1), batch.targets.flatten(), reduction="sum")
    assert loss.dtype == torch.float32
    assert summed_loss(lambda *_, **__: whole.bfloat16(), batch)[0].dtype == torch.float32
    assert float(loss) == pytest.approx(float(exact), rel=1e-5)  # bfloat16 would be off by some 2^-9


def test_validation_adds_up_in_float64_and_touches_nothing(monkeypatch):
    losses, order = iter([2.0**24, 1.0, 1.0, 1e9]), []

    task, model = Uneven(), build_model(tiny(), 8).eval()

    def cross_entropy(*_, **__):
        order.append((model.training, torch.is_grad_enabled()))
        return torch.tensor(next(losses))

    monkeypatch.setattr(F, "cross_entropy", cross_entropy)
    first = evaluate(model, task, 2, before_batch=lambda: order.append("before"))
    assert first["val_loss_nats"] == (2**24 + 1) / 16  # float32 would lose the 1
    assert order == ["before", (False, False)] * 2
    assert not model.training
    assert evaluate(model.train(), task, 2)["val_perplexity"] == math.exp(700)  # beyond is no float
    assert model.training


def test_a_batch_moves_whole():
    batch = masked_batch()
    assert to_device(batch, "cpu") is batch
    moved = to_device(batch, "meta")
    assert {t.device.type for t in vars(moved).values()} == {"meta"}
    assert to_device(Batch(batch.tokens, batch.targets), "meta").documents is None
    task = build_task(tiny().task, tiny().data, 0)
    stream = StepStream(task, 2, 3, 6)
    window = stream.window(1)
    assert (len(stream), len(window.batches)) == (6, 3)
    assert torch.equal(torch.cat([b.tokens for b in window.batches]), task.train_batch(1, 6).tokens)
    assert window.to(torch.device("meta")).n_scored == window.n_scored
    stream.load_state_dict({"next_step": 5})
    assert stream.state_dict() == {"next_step": 5}
    assert len(list(stream)) == 1
