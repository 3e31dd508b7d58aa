"""Ctrl-C and SIGTERM: real signals, to this process and to one of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from helpers import tiny

from attnzoo.errors import Stopped
from attnzoo.measure.record import Record
from attnzoo.training import run as run_module
from attnzoo.training import stopping as stopping_module
from attnzoo.training import train
from attnzoo.training.checkpoints import read_checkpoint
from attnzoo.training.optim import Together
from attnzoo.training.stopping import Stopping

BOTH = pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])


@pytest.fixture(autouse=True)
def _plain_handlers(_signals):
    """As in a process of one's own; a worker of pytest may have its own, and a job in the background ignores Ctrl-C."""
    ours = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {signum: signal.signal(signum, handler) for signum, handler in ours.items()}
    yield
    for signum, handler in ours.items():
        assert signal.getsignal(signum) == handler, f"another handler of {signal.Signals(signum).name} was left behind"
        signal.signal(signum, before[signum])


def at_call(monkeypatch, owner, name, n, action):
    """Before the n-th call of a method, do something."""
    real, calls = getattr(owner, name), []

    def called(*arguments, **kwargs):
        calls.append(1)
        if len(calls) == n:
            action()
        return real(*arguments, **kwargs)

    monkeypatch.setattr(owner, name, called)


@BOTH
def test_a_stop_within_a_step_waits_for_its_end(tmp_path, monkeypatch, signum, status):
    """With no checkpoints asked for; the run that goes on is that which was never stopped."""
    cfg = {"model": {"dropout": 0.2}, "checkpoint_every": 0}
    whole = train(tiny(tmp_path / "whole", **cfg))
    before = signal.getsignal(signum)
    with monkeypatch.context() as patch:
        at_call(patch, Together, "step", 3, lambda: os.kill(os.getpid(), signum))
        with pytest.raises(Stopped) as caught:
            train(tiny(tmp_path / "run", **cfg))
    assert caught.value.exit_status == status
    assert "while training, at step 3 of 6; the same command goes on from there" in str(caught.value)
    assert signal.getsignal(signum) == before
    record = Record.load(tmp_path / "run/record.json")
    assert record.status == "interrupted"
    assert read_checkpoint(tmp_path / "run/checkpoints/last.ckpt")["global_step"] == 3
    record = train(tiny(tmp_path / "run", **cfg))
    assert record.quality == whole.quality
    assert [(s["from_step"], s["to_step"], s["status"]) for s in record.starts] == [(0, 3, "interrupted"), (3, 6, "ok")]


@pytest.mark.parametrize("step", [3, 6])
def test_a_stop_within_validation_keeps_the_step(tmp_path, monkeypatch, step):
    """It is scored when the run goes on, before anything else."""
    whole = train(tiny(tmp_path / "whole"))
    with monkeypatch.context() as patch:
        from attnzoo.training import callbacks

        real = callbacks.evaluate

        scored = []

        def evaluate(*arguments, **kwargs):
            scored.append(1)
            if len(scored) == step // 3:
                os.kill(os.getpid(), signal.SIGINT)
            return real(*arguments, **kwargs)

        patch.setattr(callbacks, "evaluate", evaluate)
        with pytest.raises(Stopped, match=f"at step {step} of 6"):
            train(tiny(tmp_path / "run"))
    last = (tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1]
    assert "val_loss_nats" not in last  # it ended within seconds, not after the whole split
    record = train(tiny(tmp_path / "run"))
    assert record.quality == whole.quality
    rows = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("run", "whole")]
    assert [line.partition(", ")[0] for line in rows[0]] == [line.partition(", ")[0] for line in rows[1]]


@pytest.mark.parametrize("owner", ["build_task", "build_model", "sample", "run_probe", "leaks", "correctness", "costs"])
def test_a_stop_outside_of_training_leaves_a_record_at_once(tmp_path, monkeypatch, owner):
    cfg = tiny(tmp_path / "run", task="text")
    cfg.probe.enabled, cfg.probe.max_steps, cfg.probe.d_model = True, 2, 16
    cfg.measure.leak = cfg.measure.enabled = True

    def pressed(*_, **__):
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("it went on")

    monkeypatch.setattr(run_module, "leaks", lambda *_: {"passed": True, "tests": []})
    monkeypatch.setattr(run_module, "correctness", lambda *_: {"passed": True})
    monkeypatch.setattr(run_module, owner, pressed)
    with pytest.raises(Stopped):
        train(cfg)
    record = Record.load(tmp_path / "run/record.json")
    assert (record.status, len(record.starts)) == ("interrupted", 1)
    trained = owner not in ("build_task", "build_model")
    assert (tmp_path / "run/checkpoints/model.safetensors").exists() == trained
    assert (tmp_path / "run/config.yaml").exists()
    assert list(tmp_path.rglob("*.tmp")) == []


def test_a_stop_while_the_text_is_read_says_so(tmp_path, monkeypatch):
    def pressed(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("it went on")

    monkeypatch.setattr(run_module, "with_text", pressed)
    with pytest.raises(Stopped, match="stopped by SIGTERM") as caught:
        train(tiny(tmp_path / "run", task="text"))
    assert caught.value.exit_status == 143
    assert not (tmp_path / "run").exists()


def test_a_stop_ends_the_probe_between_its_steps(tmp_path, monkeypatch):
    cfg = tiny(tmp_path / "run", task="text")
    cfg.probe.enabled, cfg.probe.max_steps, cfg.probe.d_model = True, 4, 16
    at_call(monkeypatch, Together, "step", 6 + 2, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Stopped, match="in the probe task, at step 6 of 6"):
        train(cfg)
    assert Record.load(tmp_path / "run/record.json").quality.val_loss_nats > 0


def test_a_second_press_at_once_changes_nothing_and_a_later_one_breaks_the_step_off(tmp_path, monkeypatch):
    """Two signals for one key: a terminal and a comparison both send one."""
    whole = train(tiny(tmp_path / "whole"))

    def twice():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    with monkeypatch.context() as patch:
        at_call(patch, Together, "skip_if", 3, twice)
        with pytest.raises(Stopped, match="at step 3 of 6"):
            train(tiny(tmp_path / "run"))
    with monkeypatch.context() as patch:
        patch.setattr(stopping_module, "GRACE_SECONDS", 0.0)
        at_call(patch, Together, "skip_if", 2, twice)
        with pytest.raises(Stopped, match="at step 4 of 6"):  # the fifth step was broken off before its update
            train(tiny(tmp_path / "run"))
    assert train(tiny(tmp_path / "run")).quality == whole.quality


def test_a_step_broken_off_within_its_update_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    whole = train(tiny(tmp_path / "whole", checkpoint_every=2))

    def halfway(self, closure=None):
        self.optimizers[0].step()
        if len(calls) == 3:
            raise ZeroDivisionError
        calls.append(1)
        for o in self.optimizers[1:]:
            o.step()
        for o in self.optimizers:
            self.state.update(o.state)

    calls = []
    with monkeypatch.context() as patch:
        patch.setattr(Together, "step", halfway)
        assert train(tiny(tmp_path / "run", checkpoint_every=2)).status == "failed"
    assert read_checkpoint(tmp_path / "run/checkpoints/last.ckpt")["global_step"] == 2
    assert train(tiny(tmp_path / "run", checkpoint_every=2)).quality == whole.quality


def test_nothing_ends_a_write_and_a_foreign_handler_stays():
    stop = Stopping()
    with stop.listening(), stop.shield():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
    with pytest.raises(Stopped) as caught:
        stop.check()
    assert caught.value.signum == signal.SIGTERM
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        with Stopping().listening():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [1]


@BOTH
def test_the_command_stops_with_a_line_a_checkpoint_and_a_status(tmp_path, signum, status):
    """And while it runs, a second one in its folder is refused."""
    folder = tmp_path / "run"
    words = ["-m", "attnzoo", "train", "experiment=tiny", "trainer.max_steps=100000", "trainer.precision=fp32"]
    words += ["trainer.log_every=1", "probe=none", "measure=none", f"run_dir={folder}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's background job ignores it
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").stat().st_size:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    second = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    assert second.returncode == 2
    assert f"run_dir={folder} is in use by process {process.pid}" in second.stderr
    process.send_signal(signum)
    _, said = process.communicate(timeout=60)
    assert process.returncode == status
    assert "Traceback" not in said
    last = said.strip().splitlines()[-1]
    assert "stopped by " in last
    assert "the same command goes on from there" in last
    record = Record.load(folder / "record.json")
    assert record.status == "interrupted"
    assert read_checkpoint(folder / "checkpoints/last.ckpt")["global_step"] == record.starts[0]["to_step"] > 0
