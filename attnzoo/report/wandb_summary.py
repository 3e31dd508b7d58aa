"""One Weights & Biases run for a whole comparison: the table of its rows, and charts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnzoo.processes import end_with_parent
from attnzoo.report.csv import flat
from attnzoo.report.records import find_records, points
from attnzoo.report.rows import Summary, summarise
from attnzoo.training.wandb_run import WandbRun, leave_agent

_BARS = ("val_bits_per_byte", "train_step_ms", "train_peak_memory_bytes", "decode_ms_per_token")
_PAIRS = (("train_step_ms", "val_bits_per_byte"), ("train_peak_memory_bytes", "val_bits_per_byte"))


def log_summary(
    records: Sequence[Mapping[str, Any]],
    folder: str | os.PathLike[str],
    *,
    mode: str = "offline",
    group: str | None = None,
    project: str = "attnzoo",
) -> dict[str, Any]:
    """Log tables ``rows`` (a line a backend) and ``cells`` (a line a cell), charts, and the numbers as the summary.

    Args:
        records: of the comparison.
        folder: of the comparison; W&B writes below its ``wandb``.
        mode: offline, online or disabled; group, project: of the run; the group defaults to the folder's name.

    Returns:
        What was asked for and done: asked, mode, reason, id. A dead W&B is told of once, on standard error.
    """
    folder = Path(folder)
    group = group or folder.resolve().name
    run = WandbRun(folder, mode=mode, project=project, group=group, name=f"{group} summary", job_type="summary")
    if run.run is not None:
        summary = summarise(records)
        tables = _tables(summary, records)
        run.log({**tables, **_charts(summary, tables["rows"]), **_curves(summary)})
        run.summarise(_numbers(summary))
        run.finish()
    return run.status()


def _tables(summary: Summary, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    import wandb

    names: list[str | int] = [
        "backend",
        "status",
        "correct",
        "leak",
        "kernel",
        "reasons",
        "warnings",
        "best_in",
        *(column.key for column in summary.columns),
    ]
    lines: list[list[Any]] = []
    for row in summary.rows:
        values = (row.values.get(column.key) for column in summary.columns)
        said = ["; ".join(words) for words in (row.reasons, row.warnings, summary.best_in(row))]
        head = [row.title, row.status_text, row.correct, row.leak, row.kernel, *said]
        lines.append([*head, *(value and float(value.value) for value in values)])
    cells = [{key: _plain(value) for key, value in line.items()} for line in flat(records)]
    return {
        "rows": wandb.Table(columns=names, data=lines, allow_mixed_types=True),
        "cells": wandb.Table(
            columns=list(cells[0]), data=[list(cell.values()) for cell in cells], allow_mixed_types=True
        ),
    }


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (int, float)) else str(value)


def _charts(summary: Summary, rows: Any) -> dict[str, Any]:
    import wandb

    have = {column.key: column for column in summary.columns}
    accuracies = [column.key for column in summary.columns if column.unit == "acc."]
    bars = [key for key in (*_BARS, *accuracies) if key in have]
    pairs = [pair for pair in (*_PAIRS, *(("val_bits_per_byte", key) for key in accuracies)) if set(pair) <= set(have)]
    charts = {f"bar/{key}": wandb.plot.bar(rows, "backend", key, title=have[key].title) for key in bars}
    for x, y in pairs:
        charts[f"scatter/{y}_against_{x}"] = wandb.plot.scatter(
            rows, x, y, title=f"{have[y].title} against {have[x].title}"
        )
    return charts


def _curves(summary: Summary) -> dict[str, Any]:
    """Validation loss over tokens, a line a cell."""
    import wandb

    cells = [(f"{row.title} seed {record.get('seed')}", points(record, "quality.curve"))
             for row in summary.rows for record in row.good]  # fmt: skip
    lines = [(name, curve) for name, curve in cells if curve]
    if not lines:
        return {}
    xs, ys = ([[point[axis] for point in curve] for _, curve in lines] for axis in (0, 1))
    keys = [name for name, _ in lines]
    return {"curves/val_loss_nats": wandb.plot.line_series(xs, ys, keys, title="validation loss, nats", xname="tokens")}


def _numbers(summary: Summary) -> dict[str, Any]:
    """Every number under its row's name, what disqualifies a row, and the best of each column or why there is none."""
    numbers: dict[str, Any] = {f"{row.label}/{key}": v.value for row in summary.rows for key, v in row.values.items()}
    for row in summary.rows:
        words = {
            "status": row.status_text,
            "leak": row.leak,
            "correct": row.correct,
            "not_ranked": "; ".join(row.unranked),
        }
        numbers |= {f"{row.label}/{name}": said for name, said in words.items()}
    for key, ranking in summary.rankings.items():
        numbers[f"best/{key}"] = ranking.reason if ranking.best is None else summary.rows[ranking.best].label
    return numbers


def main(folder: str, mode: str, project: str, group: str) -> None:
    """``python -m attnzoo.report.wandb_summary``: of a comparison's folder, in a process of its own; no group is ''."""
    end_with_parent()
    leave_agent()
    log_summary(find_records(folder).records, folder, mode=mode, group=group or None, project=project)


if __name__ == "__main__":
    main(*sys.argv[1:])
