"""Records for one's own analysis: read from folders, as a table and as curves."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import pytest

import attnzoo
from attnzoo import RequestError

pandas = pytest.importorskip("pandas")
EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


def test_committed_records_as_a_table():
    records = attnzoo.load_records(EXPERIMENTS / "demo", EXPERIMENTS / "recall")
    frame = attnzoo.to_frame(records)
    assert len(frame) == len(records) > 10
    row = frame[frame["run"] == "sdpa-seed0"].iloc[0]
    stored = json.loads((EXPERIMENTS / "demo/sdpa-seed0/record.json").read_text())
    assert row["quality.val_bits_per_byte"] == stored["quality"]["val_bits_per_byte"]
    assert row["cost.train_step_ms.median"] == stored["cost"]["train_step_ms"]["median"]
    assert row["correct.passed"] == stored["correct"]["passed"]
    assert row["reasons"] == []
    assert not [name for name in frame if name.startswith(("leak.tests", "quality.curve", "cost.length_sweep"))]


def test_curves_are_tidy():
    record = {
        "run": "a", "attention": "x", "seed": 3,
        "quality": {"curve": [[8, 2.0], [16, 1.5]], "curves": {"mine": [[16, 0.5]]}, "task_curve": {"re.call": [[4, 0.25]]}},
    }  # fmt: skip
    frame = attnzoo.to_curves([record, {"run": "b", "status": "refused"}])
    assert list(frame.itertuples(index=False, name=None)) == [
        ("a", "x", 3, "val_loss_nats", 8.0, 2.0), ("a", "x", 3, "val_loss_nats", 16.0, 1.5), ("a", "x", 3, "mine", 16.0, 0.5),
        ("a", "x", 3, "task_accuracy.re.call", 4.0, 0.25),
    ]  # fmt: skip
    assert list(attnzoo.to_curves([])) == ["run", "attention", "seed", "name", "tokens", "value"]
    assert len(attnzoo.to_frame([])) == 0


def test_every_broken_record_is_named(tmp_path):
    good = {"schema": 1, "status": "ok", "attention": "x", "seed": 0}
    for name, text in {"a": json.dumps(good), "b": "{", "c": '{"schema": 9, "status": "ok"}', "d": "[]"}.items():
        (tmp_path / "all" / name).mkdir(parents=True)
        (tmp_path / "all" / name / "record.json").write_text(text)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError) as error:
        attnzoo.load_records(tmp_path / "all", tmp_path / "empty", tmp_path / "none")
    said = error.value.reasons
    assert len(said) == 5
    for name, line in zip(("all/b", "all/c", "all/d", "empty", "none"), said, strict=True):
        assert name in line
    assert [r["status"] for r in attnzoo.load_records(tmp_path / "all", broken=True)] == [
        "ok",
        "failed",
        "failed",
        "failed",
    ]
    with pytest.raises(RequestError, match="name the folders"):
        attnzoo.load_records()


def test_a_planned_cell_without_a_record_keeps_its_row(tmp_path):
    (tmp_path / "comparison.json").write_text(json.dumps({"cells": [{"run": "x-seed0", "attention": "x", "seed": 0}]}))
    assert [(r["run"], r["status"]) for r in attnzoo.load_records(tmp_path)] == [("x-seed0", "interrupted")]


def test_without_pandas_the_reason_is_said(monkeypatch):
    true = builtins.__import__

    def without(name, *arguments, **kwargs):
        if name == "pandas":
            raise ImportError(name)
        return true(name, *arguments, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    for make in (attnzoo.to_frame, attnzoo.to_curves):
        with pytest.raises(RequestError, match=r"attnzoo\[pandas\]"):
            make([])
