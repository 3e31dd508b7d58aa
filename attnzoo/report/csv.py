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
from attnzoo.report.records import dig
from attnzoo.report.rows import summarise

_SETTINGS = ("run", "attention", "seed", "status")
_MORE = ("positions", "n_heads", "n_kv_heads", "kernel_requested", "kernel_resolved", "config_hash")
_PLACE = ("device", "cpu", "precision", "threads", "python", "torch", "git_commit", "git_dirty", "start", "end")


def flat(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One flat dict a record, all with the same keys; None where there is nothing.

    Speeds without a passed correctness check are left out here too; ``reasons`` says so.
    """
    chosen = columns(records)
    swept = dict.fromkeys(key for record in records for key in record.get("swept") or {})
    lines = []
    for record, row in zip(records, summarise(records, group=False).rows, strict=True):
        line = {name: record.get(name) for name in _SETTINGS}
        line |= {key: dig(record, "swept", {}).get(key) for key in swept if key not in (*_SETTINGS, *_MORE)}
        line["reasons"] = "; ".join(row.reasons)
        line["options"] = json.dumps(record.get("options") or {}, sort_keys=True)
        line |= {name: record.get(name) for name in _MORE}
        for column in chosen:
            value = row.values.get(column.key)
            line[column.key] = value and value.value
            if column.timing:
                line |= {f"{column.key}_low": value and value.low, f"{column.key}_high": value and value.high}
        line["leak_passed"] = dig(record, "leak.passed")
        line["correct_passed"] = dig(record, "correct.passed")
        line |= {name: dig(record, f"environment.{name}") for name in _PLACE}
        lines.append(line)
    return lines


def write_csv(records: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    """Write ``summary.csv``, complete or not at all."""
    lines = flat(records)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else [*_SETTINGS, "reasons"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return write_text_atomic(path, text.getvalue())
