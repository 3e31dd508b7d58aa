"""Correct, in a record and beside a speed of the bench, is said of the measured size."""

from __future__ import annotations

import torch
from helpers import tiny

from attnzoo.backends.sdpa import SDPA
from attnzoo.measure.bench import _measured
from attnzoo.measure.bench_row import Setting
from attnzoo.model import build_model
from attnzoo.tasks import build_task
from attnzoo.training import after


def test_a_record_says_it_of_the_trained_size_and_of_the_run_s_options(monkeypatch):
    seen = []
    monkeypatch.setattr(after, "check", lambda name, **how: seen.append((name, how)) or real(name, only=["scale"]))
    real = __import__("attnzoo").check
    cfg = tiny(attention="sliding_window", options={"window": 3}, batch_size=9)
    task = build_task(cfg.task, cfg.data, cfg.seed)
    model = build_model(cfg, task.vocab_size)
    record = after.correctness(cfg, "cpu", model, task, "bf16")
    assert record["passed"]
    assert seen[0][0] == "sliding_window"
    assert seen[0][1]["window"] == 3
    assert seen[0][1]["quick"]
    (case,) = [t for t in record["tests"] if t["name"] == "measured_size"]
    assert case["cases"] == {"passed": 4}
    for attention in model.attention_modules():
        attend = attention.attend
        attention.attend = lambda q, *rest, attend=attend: attend(q, *rest) * (1.2 if q.shape[0] == 9 else 1.0)
    wrong = after.correctness(cfg, "cpu", model, task, "fp32")
    assert not wrong["passed"]


def test_the_bench_says_it_of_its_longest_input(monkeypatch):
    setting = Setting(1, 2, None, 8, torch.float32, "cpu", 1, 1, 0)
    assert _measured("sdpa", setting, 40) == ("ok", [])
    attend = SDPA.attend
    monkeypatch.setattr(
        SDPA, "attend", lambda s, q, k, *rest: attend(s, q, k, *rest) * (1.2 if k.shape[2] > 30 else 1.0)
    )
    assert _measured("sdpa", setting, 30) == ("ok", [])
    status, (reason,) = _measured("sdpa", setting, 40)
    assert status == "incorrect"
    assert "at 40 tokens" in reason
