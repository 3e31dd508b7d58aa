"""What a comparison tells Weights & Biases, to a stand-in that keeps every call."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import ClassVar

import pytest

from attnzoo.report import wandb_summary, write_report
from attnzoo.report.records import find_records
from attnzoo.report.rows import summarise


class Run:
    """A run that opens, or does not."""

    made: ClassVar[list[Run]] = []
    opens = True

    def __init__(self, folder, **how):
        self.folder, self.how, self.run = folder, how, object() if self.opens else None
        self.logged, self.summary, self.finished = [], [], False
        Run.made.append(self)

    def log(self, values):
        self.logged.append(values)

    def summarise(self, values):
        self.summary.append(values)

    def finish(self):
        self.finished = True

    def status(self):
        return {"finished": self.finished}


@pytest.fixture
def logged(monkeypatch):
    def drawn(kind):
        return lambda *args, **how: (kind, args, how)

    plot = SimpleNamespace(bar=drawn("bar"), scatter=drawn("scatter"), line_series=drawn("lines"))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Table=lambda **how: SimpleNamespace(**how), plot=plot))
    monkeypatch.setattr(wandb_summary, "WandbRun", Run)
    monkeypatch.setattr(Run, "made", [])
    return Run


def test_one_run_named_after_the_folder_or_its_group(logged, records, tmp_path):
    assert wandb_summary.log_summary(records, tmp_path) == {"finished": True}
    assert wandb_summary.log_summary(records, str(tmp_path), mode="online", group="night", project="p") == {
        "finished": True
    }
    how = {"mode": "offline", "project": "attnzoo", "job_type": "summary"}
    name = tmp_path.name
    assert [run.how for run in logged.made] == [
        {**how, "group": name, "name": f"{name} summary"},
        {**how, "mode": "online", "project": "p", "group": "night", "name": "night summary"},
    ]
    assert {run.folder for run in logged.made} == {tmp_path}


def test_a_run_that_does_not_open_is_told_nothing(logged, records, tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "opens", False)
    wandb_summary.log_summary(records, tmp_path)
    [run] = logged.made
    assert (run.logged, run.summary, run.finished) == ([], [], False)


def test_tables_charts_and_numbers(logged, records, tmp_path):
    wandb_summary.log_summary(records, tmp_path)
    [run] = logged.made
    [values], summary = run.logged, summarise(records)
    rows, cells = values["rows"], values["cells"]
    assert rows.columns[:8] == ["backend", "status", "correct", "leak", "kernel", "reasons", "warnings", "best_in"]
    assert rows.columns[8:] == [column.key for column in summary.columns]
    lines = {line[0]: dict(zip(rows.columns, line, strict=True)) for line in rows.data}
    assert list(lines) == [row.title for row in summary.rows]
    leaking = lines["block_sparse (LEAKS)"]
    assert (leaking["status"], leaking["correct"], leaking["leak"], leaking["kernel"]) == (
        "ok",
        "pass",
        "fail",
        "torch/gather",
    )
    assert leaking["reasons"] == "speed withheld: leak test failed (suffix)"
    assert leaking["train_step_ms"] is None
    best = lines["sliding_window"]
    assert best["best_in"].split("; ")[0] == "val_bits_per_byte"
    assert best["train_step_ms"] == summary.rows[4].values["train_step_ms"].value
    assert [len(cells.data), len(cells.data[0])] == [len(records), len(cells.columns)]
    first = dict(zip(cells.columns, cells.data[0], strict=True))
    assert (first["attention"], first["seed"], first["options"]) == ("exact", 0, "{}")
    assert first["train_step_ms"] == records[0]["cost"]["train_step_ms"]["median"]
    keys = ["val_bits_per_byte", "train_step_ms", "train_peak_memory_bytes", "decode_ms_per_token", "recall_accuracy"]
    titles = {column.key: column.title for column in summary.columns}
    for key in keys:
        assert values[f"bar/{key}"] == ("bar", (rows, "backend", key), {"title": titles[key]})
    for x, y in (("train_step_ms", keys[0]), ("train_peak_memory_bytes", keys[0]), (keys[0], "recall_accuracy")):
        title = f"{titles[y]} against {titles[x]}"
        assert values[f"scatter/{y}_against_{x}"] == ("scatter", (rows, x, y), {"title": title})
    kind, (xs, ys, names), how = values["curves/val_loss_nats"]
    assert (kind, how) == ("lines", {"title": "validation loss, nats", "xname": "tokens"})
    curves = {f"{r['attention']} seed {r['seed']}": r["quality"]["curve"] for r in records if "quality" in r}
    assert len(names) == len(curves)
    drawn = dict(zip(names, zip(xs, ys, strict=True), strict=True))
    assert drawn["gqa seed 1"] == tuple(map(list, zip(*curves["gqa seed 1"], strict=True)))
    assert len(values) == 2 + 5 + 3 + 1
    assert run.summary == [wandb_summary._numbers(summary)]


def test_a_comparison_of_little_has_the_charts_it_has_numbers_for(logged, tmp_path):
    bare = {"status": "ok", "attention": "a", "seed": 0, "quality": {"val_bits_per_byte": 2.0}}
    wandb_summary.log_summary([bare], tmp_path)
    assert set(logged.made[0].logged[0]) == {"rows", "cells", "bar/val_bits_per_byte"}


def test_the_process_of_its_own_reads_the_folder(logged, folder, monkeypatch):
    done = []
    monkeypatch.setattr(wandb_summary, "end_with_parent", lambda: done.append("parent"))
    monkeypatch.setattr(wandb_summary, "leave_agent", lambda: done.append("agent"))
    for group in ("", "night"):
        wandb_summary.main(str(folder), "online", "p", group)
    assert done == ["parent", "agent"] * 2
    assert [run.how["group"] for run in logged.made] == [folder.name, "night"]
    assert {(run.how["mode"], run.how["project"]) for run in logged.made} == {("online", "p")}
    assert len(logged.made[0].logged[0]["cells"].data) == len(find_records(folder).records)


def test_a_report_logs_where_it_is_asked_to(logged, folder):
    for mode in (None, "disabled"):
        write_report(folder, wandb_mode=mode)
    assert not logged.made
    write_report(folder, wandb_mode="online", group="night", project="p")
    [run] = logged.made
    assert run.how == {
        "mode": "online",
        "project": "p",
        "group": "night",
        "name": "night summary",
        "job_type": "summary",
    }
    assert run.folder == folder
    assert len(run.logged[0]["cells"].data) == len(find_records(folder).records)
