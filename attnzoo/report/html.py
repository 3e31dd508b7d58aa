"""report.html and summary.csv: what a comparison found, in one file that needs no network."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnzoo.files import write_text_atomic
from attnzoo.report.csv import write_csv
from attnzoo.report.groups import clean, distinct
from attnzoo.report.matrix import matrix
from attnzoo.report.page import render
from attnzoo.report.plots import plots
from attnzoo.report.records import Found, dig, find_records, mapping, number
from attnzoo.report.rows import Row, Summary, summarise
from attnzoo.report.scales import compact


def write_report(
    folder: str | os.PathLike[str],
    *,
    wandb_mode: str | None = None,
    group: str | None = None,
    project: str = "attnzoo",
) -> Path:
    """Write ``report.html`` and ``summary.csv`` into ``folder`` from the records in it.

    Args:
        folder: of a comparison or of one run.
        wandb_mode: offline or online also logs a summary run to Weights & Biases; None or disabled does not.
        group, project: of that run; the group defaults to the folder's name.

    Returns:
        The path of the HTML file.

    Raises:
        RequestError: no record in the folder, or it cannot be written.
    """
    found = find_records(folder)
    write_csv(found.records, found.folder / "summary.csv")
    path = write_text_atomic(found.folder / "report.html", report_html(found))
    if wandb_mode not in (None, "disabled"):
        from attnzoo.report.wandb_summary import log_summary

        log_summary(found.records, found.folder, mode=str(wandb_mode), group=group, project=project)
    return path


def report_html(found: Found) -> str:
    """The page as text."""
    summary = summarise(found.records)
    return render(
        "report.html.j2",
        title=_title(summary.rows),
        facts=_facts(found),
        findings=_findings(summary),
        summary=summary,
        plots=plots(summary),
        leak=matrix(summary.rows, "leak"),
        correct=matrix(summary.rows, "correct"),
        samples=_samples(summary.rows),
        environment=_environment(found.records),
        commands=_commands(found),
    )


def _title(rows: Sequence[Row]) -> str:
    if len(rows) == 1:
        return f"{rows[0].title}: what it costs, what it buys"
    absent = Counter(row.status for row in rows if not row.good)
    rest = ", ".join(f"{count} {'out of memory' if status == 'oom' else status}" for status, count in absent.items())
    what = (
        "settings" if any(mapping(record, "swept") for row in rows for record in row.records) else "attention backends"
    )
    return f"{len(rows)} {what} compared" + (f", {rest}" if rest else "")


def _facts(found: Found) -> list[tuple[str, str]]:
    """The headline: when, where, how much; every differing value is named."""
    records = found.records

    def each(path: str) -> str:
        return ", ".join(distinct(dig(record, path) for record in records))

    starts, ends = (distinct(dig(r, f"environment.{part}") for r in records) for part in ("start", "end"))
    when = [min(starts, default=""), max(ends, default="")]
    commits = distinct(str(dig(r, "environment.git_commit", ""))[:12] for r in records)
    dirty = any(dig(r, "environment.git_dirty") for r in records)
    machine = distinct((each("environment.cpu"), each("environment.device"), each("environment.gpu")))
    facts = {
        "when": " to ".join(time[:16].replace("T", " ") for time in when if time),
        "machine": " · ".join(
            [*machine, *(f"{n} thread{'' if n == '1' else 's'}" for n in distinct([each("environment.threads")]))]
        ),
        "precision": each("environment.precision"),
        "commit": ", ".join(commits) + (" with uncommitted changes" if dirty else ""),
        "seeds": each("seed"),
        "model": _sizes(records, "cost.parameters", "parameters"),
        "training": _sizes(records, "quality.tokens_seen", "tokens"),
    }
    return [(name, clean(value)) for name, value in facts.items() if value]


def _sizes(records: Sequence[Mapping[str, Any]], path: str, unit: str) -> str:
    """'1.05M parameters', '7, 8 parameters', or where there are more than three '370k to 432k parameters (9 sizes)'."""
    sizes = sorted({value for record in records if (value := number(record, path)) is not None})
    if len(sizes) > 3:
        return f"{compact(sizes[0])} to {compact(sizes[-1])} {unit} ({len(sizes)} sizes)"
    return f"{', '.join(distinct(map(compact, sizes)))} {unit}" if sizes else ""


_FINDINGS = {
    "val_bits_per_byte": "best on text",
    "train_step_ms": "fastest training step",
    "decode_ms_per_token": "fastest decoding",
    "train_peak_memory_bytes": "least training memory",
}


def _findings(summary: Summary) -> list[dict[str, str]]:
    """What a reader wants first: who is the best, or why nobody can be said to be."""
    found = []
    for column in summary.columns:
        name = _FINDINGS.get(column.key) or (f"best on {column.title}" if column.unit == "acc." else None)
        ranking = summary.rankings.get(column.key)
        if not name or not ranking:
            continue
        if ranking.best is None:
            who, value = "undecided", ranking.reason.removeprefix("undecided ").removeprefix("undecided: ")
        else:
            unit = "bits/byte" if column.key == "val_bits_per_byte" else column.unit if column.unit != "acc." else ""
            top = summary.rows[ranking.best]
            who, value = top.title, f"{summary.text(top, column)} {unit}".strip()
        found.append({"name": name, "who": who, "value": value})
    return found


def _samples(rows: Sequence[Row]) -> list[tuple[Row, str]]:
    texts = ((row, next((s for r in row.good if (s := dig(r, "quality.sample"))), None)) for row in rows)
    return [(row, str(text)) for row, text in texts if text]


def _environment(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Every entry; where the cells differ, all values. Times and commands stand elsewhere."""
    names = dict.fromkeys(name for record in records for name in mapping(record, "environment"))
    skipped = {"start", "end", "seconds", "stage_seconds", "command"}
    lines = ((name, distinct(dig(r, f"environment.{name}") for r in records)) for name in names if name not in skipped)
    return [(name.replace("_", " "), " | ".join(values)) for name, values in lines if values]


def _commands(found: Found) -> list[str]:
    if command := found.plan.get("command"):
        return [str(command)]
    return distinct(dig(record, "environment.command") for record in found.records)
