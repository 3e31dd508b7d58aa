"""summary.csv: one line a cell, every number as the record stores it, units in the names."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnzoo.files import write_text_atomic
from attnzoo.report.columns import columns
from attnzoo.report.groups import clean
from attnzoo.report.records import dig, mapping
from attnzoo.report.rows import Row, summarise

_SETTINGS = ("run", "attention", "seed", "status")
_MORE = ("positions", "n_heads", "n_kv_heads", "kernel_requested", "kernel_resolved", "config_hash")
_PLACE = ("device", "cpu", "precision", "threads", "python", "torch", "git_commit", "git_dirty", "start", "end")
FORMULA = ("=", "+", "-", "@", "|", "%")
"""What makes a spreadsheet read a cell as a formula when it stands first."""


def flat(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One flat dict a record, all with the same keys; None where there is nothing.

    Speeds without a passed correctness check are left out here too; ``reasons`` says so. One timing that stands for all seeds
    of a variant is in the line of the first of them alone, and ``timed_with`` names its run in the others: it was measured
    once and has no deviation over seeds. ``best_in`` and ``not_ranked`` are those of the variant.
    """
    chosen = columns(records)
    swept = dict.fromkeys(key for record in records for key in mapping(record, "swept"))
    summary, cells = summarise(records), summarise(records, group=False).rows
    rows = {id(record): row for row in summary.rows for record in row.records}
    timed: dict[tuple[int, str], str] = {}
    lines = []
    for record, cell in zip(records, cells, strict=True):
        row = rows[id(record)]
        line = {name: record.get(name) for name in _SETTINGS}
        line |= {key: mapping(record, "swept").get(key) for key in swept if key not in (*_SETTINGS, *_MORE)}
        line |= {"reasons": "; ".join(cell.reasons), "warnings": "; ".join(cell.warnings)}
        line |= {"best_in": "; ".join(summary.best_in(row)), "not_ranked": "; ".join(row.unranked)}
        line["options"] = json.dumps(record.get("options") or {}, sort_keys=True)
        line |= {name: record.get(name) for name in _MORE}
        carrier = _carrier(record, row, timed)
        line["timed_with"] = carrier
        for column in chosen:
            value = None if carrier and column.kind == "speed" else cell.values.get(column.key)
            line[column.key] = value and value.value
            if column.timing:
                line |= {f"{column.key}_low": value and value.low, f"{column.key}_high": value and value.high}
        line["leak_passed"] = dig(record, "leak.passed")
        line["correct_passed"] = dig(record, "correct.passed")
        line |= {name: dig(record, f"environment.{name}") for name in _PLACE}
        lines.append(line)
    return lines


def _carrier(record: Mapping[str, Any], row: Row, timed: dict[tuple[int, str], str]) -> str | None:
    """The run of an earlier line of the same variant that has this very timing; ``timed`` remembers them."""
    parts = [mapping(record, path) for path in ("cost.train_step_ms", "cost.prefill_ms", "cost.decode_ms_per_token")]
    if not any(parts):
        return None
    name = str(record.get("run") or record.get("seed"))
    first = timed.setdefault((id(row), json.dumps(parts, sort_keys=True)), name)
    return None if first == name else first


def write_csv(records: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    """Write ``summary.csv``, complete or not at all."""
    lines = flat(records)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(list(map(plain, lines[0])) if lines else [*_SETTINGS, "reasons"])
    writer.writerows([plain(value) for value in line.values()] for line in lines)
    return write_text_atomic(path, text.getvalue())


def plain(value: Any) -> Any:
    """A CSV cell that no program takes for a command: without control characters, and text that would begin a formula in a
    spreadsheet behind an apostrophe. Numbers stay numbers."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    shown = clean(value)
    try:
        float(shown)
    except ValueError:
        return f"'{shown}" if shown.lstrip()[:1] in FORMULA else shown
    return shown
