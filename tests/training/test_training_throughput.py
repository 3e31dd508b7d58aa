"""Logged throughput: tokens between two lines over the clock between them, validation and checkpoints left out."""

import json
import time

import pytest
from helpers import tiny

from attnzoo.model import build_model
from attnzoo.tasks import build_task
from attnzoo.training import callbacks, checkpoints
from attnzoo.training.fit import fit
from attnzoo.training.loggers import JsonLines

FETCH, SCORE, SAVE, UPDATE = 3.0, 50.0, 700.0, 0.25  # seconds on a clock that nothing else moves


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still but where time is planted."""
    now = [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def takes(place, name, seconds):
        inner = getattr(place, name)

        def slow(*args, **kwargs):
            now[0] += seconds
            return inner(*args, **kwargs)

        monkeypatch.setattr(place, name, slow)

    return takes


def rows(cfg, task, folder):
    fit(
        build_model(cfg, task.vocab_size), task, cfg.trainer, seed=0, checkpoint=folder / "last.ckpt",
        loggers=[JsonLines(folder / "metrics.jsonl", 0)],
    )  # fmt: skip
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "step_ms" in line]


def test_waiting_for_data_counts_and_validation_and_checkpoints_do_not(clock, tmp_path):
    cfg = tiny(max_steps=6, log_every=2, eval_every=3, checkpoint_every=3)
    task = build_task(cfg.task, cfg.data, cfg.seed)
    clock(task, "train_batch", FETCH)
    clock(callbacks, "evaluate", SCORE)
    clock(checkpoints, "write_bytes_atomic", SAVE)
    clock(callbacks, "peak_memory", UPDATE)  # the host's own work after a line belongs to the next one
    found = rows(cfg, task, tmp_path)
    assert len(found) == 3
    assert [line["step_ms"] for line in found] == [1e3 * s / 2 for s in (2 * FETCH, *[2 * FETCH + UPDATE] * 2)]
    tokens = 2 * cfg.trainer.batch_size * cfg.task.n_tokens
    assert [line["tokens_per_s"] for line in found] == [
        pytest.approx(tokens / (line["step_ms"] * 2e-3)) for line in found
    ]
