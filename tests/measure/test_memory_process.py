"""The process that weighs a training step: what it counts, and what becomes of one that fails."""

from __future__ import annotations

import io
import json
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from attnzoo import build
from attnzoo.measure import memory
from attnzoo.model.config import ModelConfig
from attnzoo.training.config import AttentionConfig, RunConfig


class Child:
    """A process that ends as it is told to."""

    def __init__(self, status, out, err, said="", complained=""):
        self.status, self.killed = status, False
        out.write(said.encode())
        err.write(complained.encode())

    def wait(self, timeout=None):
        if self.status == "late" and not self.killed:
            raise subprocess.TimeoutExpired("weighing", timeout)
        return self.status

    def kill(self):
        self.killed = True


@pytest.fixture
def child(monkeypatch):
    made = []

    def ends(status, **texts):
        def start(module, arguments=(), *, out, err, **_):
            made.append(Child(status, out, err, **texts))
            return made[-1]

        monkeypatch.setattr(memory.processes, "start", start)
        return made

    return ends


def test_what_it_prints_last_is_the_result(child):
    child(0, said='loading\n{"status": "ok", "bytes": 7}\n')
    assert memory.in_own_process("any", {}, 5.0) == {"status": "ok", "bytes": 7}


def test_what_it_is_told_no_other_process_can_read(monkeypatch):
    """Its arguments stand in the list of processes; the real process reads its description and answers."""
    seen, real = [], memory.processes.start

    def start(module, arguments=(), **how):
        seen.append(process := real(module, arguments, **how))
        seen.append(Path(f"/proc/{process.pid}/cmdline").read_bytes() if Path("/proc/self").exists() else b"")
        return process

    monkeypatch.setattr(memory.processes, "start", start)
    description = {"device": "nowhere", "threads": 1, "attention": {"name": "mine", "options": {"api_key": "hush"}}}
    found = memory.in_own_process("attnzoo.measure.memory", description, 120.0)
    assert found["status"] == "failed"
    assert "model" in found["reasons"][0]  # it has read that there is none
    assert b"hush" not in seen[1]


@pytest.mark.parametrize(
    ("status", "texts", "outcome", "reason"),
    [
        (-signal.SIGKILL, {}, "oom", "killed: most likely the machine ran out of memory"),
        (3, {"complained": "Traceback\nValueError: no such width\n"}, "failed", "ended with status 3: ValueError: no such width"),
        (1, {}, "failed", "ended with status 1: no message"),
        ("late", {}, "failed", "did not end within 5 s"),
    ],
)  # fmt: skip
def test_how_it_failed_is_the_reason(child, status, texts, outcome, reason):
    made = child(status, **texts)
    found = memory.in_own_process("any", {}, 5.0)
    assert found["status"] == outcome
    assert reason in found["reasons"][0]
    assert {found[key] for key in ("bytes", "method", "resting_bytes", "process_bytes", "process_method")} == {None}
    assert made[0].killed  # none is left behind


def test_the_peak_of_a_process_is_in_bytes(monkeypatch, tmp_path):
    class Status:
        def __init__(self, there):
            self.there = there

        def exists(self):
            return self.there

        def read_text(self):
            return "Name:\tpython\nVmPeak:\t  99 kB\nVmHWM:\t   2048 kB\nVmRSS:\t 1 kB\n"

    monkeypatch.setattr(memory, "Path", lambda _: Status(True))
    assert memory.process_peak() == 2048 * 1024
    monkeypatch.setattr(memory, "Path", lambda _: Status(False))
    monkeypatch.setattr(memory.resource, "getrusage", lambda who: type("Usage", (), {"ru_maxrss": 30})())
    monkeypatch.setattr(memory.sys, "platform", "linux")
    assert memory.process_peak() == 30 * 1024
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    assert memory.process_peak() == 30


def test_optimiser_state_rests_beside_the_parameters():
    description = {
        "attention": {"name": "sdpa", "options": {}}, "positions": {"name": "rope"},
        "model": {"n_layers": 1, "d_model": 64, "n_heads": 2}, "seed": 0, "vocab_size": 128, "batch_size": 2,
        "n_tokens": 16, "device": "cpu", "precision": "fp32", "threads": 1,
    }  # fmt: skip
    found = memory._measure(json.loads(json.dumps(description)))
    model = memory.assemble(
        memory.ModelConfig(**description["model"]),
        memory.AttentionConfig("sdpa", {}),
        memory.PositionsConfig("rope"),
        128,
        0,
    )
    weights = 4 * model.parameter_count()
    assert found["status"] == "ok", found["reasons"]
    assert 3 * weights <= found["resting_bytes"] < 3.1 * weights  # AdamW keeps two numbers for each
    assert found["bytes"] >= found["resting_bytes"] + weights  # and a gradient is made for each


def test_the_rise_is_counted_from_before_the_step(monkeypatch):
    monkeypatch.setattr(memory, "reset_process_peak", lambda: (1000, "by hand"))
    monkeypatch.setattr(memory, "process_peak", lambda: 1700)
    monkeypatch.setattr(memory, "peak_memory", lambda work, device: (50, "a stub"))

    class Step:
        optimizer = None

        def __init__(self, model, batch_size, n_tokens, *, precision, make_optimizer=None):
            steps.append((batch_size, n_tokens, precision))

        def __call__(self):
            pass

        def resting_bytes(self):
            return 300

    steps: list = []
    monkeypatch.setattr(memory, "TrainStep", Step)
    description = {
        "attention": {"name": "sdpa", "options": {}}, "positions": {"name": "rope"},
        "model": {"n_layers": 1, "d_model": 16, "n_heads": 2}, "seed": 0, "vocab_size": 16, "batch_size": 3,
        "n_tokens": 20, "device": "cpu", "precision": "bf16", "threads": 1,
    }  # fmt: skip
    found = memory._measure(description)
    assert (found["bytes"], found["resting_bytes"], found["process_bytes"]) == (350, 300, 700)
    assert found["process_method"] == "by hand"
    assert steps == [(1, 8, "bf16"), (3, 20, "bf16")]  # a small one first, then that which is weighed


def test_main_prints_one_line_of_json(monkeypatch):
    monkeypatch.setattr(memory.processes, "end_with_parent", lambda: None)
    monkeypatch.setattr(memory, "return_freed_memory", lambda: None)
    monkeypatch.setattr(memory, "_measure", lambda description: {"n": description["n"]})
    written = io.StringIO()
    monkeypatch.setattr(memory.sys, "stdout", written)
    monkeypatch.setattr(memory.sys, "stdin", io.StringIO('{"n": 3, "code": {"attention/Mine": {}}}'))
    loaded = []
    monkeypatch.setattr(memory, "load_code", lambda code, allowed: loaded.append((code, allowed)))
    memory.main()
    assert json.loads(written.getvalue()) == {"n": 3}
    assert loaded == [({"attention/Mine": {}}, True)]


def test_a_process_is_told_everything(monkeypatch):
    sent = []
    monkeypatch.setattr(memory, "in_own_process", lambda *given: sent.append(given) or {"status": "ok"})
    cfg = RunConfig(attention=AttentionConfig("sliding_window", {"window": 4}), model=ModelConfig(n_layers=3), seed=7)
    shape = {"vocab_size": 19, "batch_size": 3, "n_tokens": 20, "device": "cuda", "precision": "bf16"}
    assert memory.train_step_memory(cfg, **shape, timeout=5.0) == {"status": "ok"}
    memory.train_step_memory(cfg, vocab_size=19, batch_size=3, n_tokens=20)
    (module, description, timeout), (_, plain, longest) = sent
    assert (module, timeout, longest) == ("attnzoo.measure.memory", 5.0, 600.0)
    assert {key: description[key] for key in shape} == shape
    assert (plain["device"], plain["precision"]) == ("cpu", "fp32")
    assert (description["seed"], description["threads"]) == (7, torch.get_num_threads())
    assert description["attention"] == {"name": "sliding_window", "options": {"window": 4}}
    assert description["model"]["n_layers"] == 3
    assert description["positions"]["name"] == cfg.positions.name


def test_the_peak_of_a_cuda_device_is_beyond_what_was_there(monkeypatch):
    done, allocated = [], iter([100, 0])
    for name, value in {
        "reset_peak_memory_stats": lambda device: done.append("reset"),
        "memory_allocated": lambda device: next(allocated),
        "max_memory_allocated": lambda device: 170,
    }.items():
        monkeypatch.setattr(memory.torch.cuda, name, value)
    monkeypatch.setattr(memory, "synchronize", lambda device: done.append(device))
    assert memory.peak_memory(lambda: done.append("work"), "cuda:1") == (70, memory.CUDA_METHOD)
    assert done == ["cuda:1", "reset", "work", "cuda:1"]


def test_masks_that_are_kept_count():
    memory.static_scores.cache_clear()
    build("sliding_window", n_heads=1, head_dim=8, window=4)(*(torch.randn(1, 1, 40, 8) for _ in range(3)))
    held = []
    memory.peak_memory(lambda: held.append(memory.static_scores.cache_info().currsize))
    assert held == [0]


def test_the_peak_is_set_back_where_the_system_can(monkeypatch):
    written = []

    class Place:
        def __init__(self, path):
            self.path = path

        def write_text(self, text):
            if not can:
                raise PermissionError
            written.append((self.path, text))

    monkeypatch.setattr(memory, "Path", Place)
    monkeypatch.setattr(memory, "process_peak", lambda: 50 + len(written))
    can = False
    assert memory.reset_process_peak() == (50, "rise of the process's peak resident memory (ru_maxrss)")
    can = True
    assert memory.reset_process_peak() == (51, "rise of the process's peak resident memory (VmHWM)")
    assert written == [("/proc/self/clear_refs", "5")]
