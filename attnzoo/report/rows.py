"""Records to rows: seeds gathered, speeds withheld where nothing proves them correct, the best values found."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnzoo.report.columns import Column, columns, decimals_for, fixed
from attnzoo.report.groups import PLACE, clean, distinct, groups_of, labels_of
from attnzoo.report.records import dig, number

_FIELDS = {"speed": PLACE, "memory": PLACE, "quality": ("quality.tokens_seen",), "size": ()}
_OTHER_QUESTION = ("data", "task", "probe", "experiment")  # swept, they change what the quality is of

# 0.975 quantiles of Student's t for 1, 2, … degrees of freedom
_T = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True)
class Value:
    """A number in stored units with its 95 % interval, where it has one."""

    value: float
    low: float | None = None
    high: float | None = None

    def overlaps(self, other: Value) -> bool:
        low, high = (self.value if x is None else x for x in (self.low, self.high))
        other_low, other_high = (other.value if x is None else x for x in (other.low, other.high))
        return low <= other_high and other_low <= high


@dataclass
class Row:
    """One backend as it was set up, with all its seeds (or one cell).

    Args:
        label: the backend's name, with what sets it apart from another row of the same backend.
        status: ok where any seed is; else the status of the first.
        reasons: of every seed that is not ok, and why a speed is withheld.
        values: column key -> Value; missing where there is nothing to show.
        leak, correct: "pass", "fail" or "–" (not tested).
    """

    label: str
    records: list[Mapping[str, Any]]
    status: str
    reasons: list[str] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    leak: str = "–"
    correct: str = "–"

    @property
    def good(self) -> list[Mapping[str, Any]]:
        return [record for record in self.records if record.get("status") == "ok"]

    @property
    def kernel(self) -> str:
        return ", ".join(distinct(dig(record, "kernel_resolved") for record in self.records))

    @property
    def note(self) -> str:
        """The reasons in one line that names the backend."""
        line = "; ".join(self.reasons)
        return line if line.startswith(f"{self.label}:") else f"{self.label}: {line}"

    @property
    def status_text(self) -> str:
        part = 0 < len(self.good) < len(self.records)
        return f"ok {len(self.good)}/{len(self.records)}" if part else self.status


@dataclass
class Summary:
    """Rows and columns of one comparison, with the best values.

    Args:
        best: column key -> indices of the rows that hold the best value or one whose interval overlaps it.
        incomparable: column key -> the settings that differ between its rows, so that none is marked.
    """

    rows: list[Row]
    columns: list[Column]
    best: dict[str, set[int]] = field(default_factory=dict)
    incomparable: dict[str, list[str]] = field(default_factory=dict)

    def text(self, row: Row, column: Column, *, interval: bool = False) -> str:
        """The shown number, '–' for none; with ``interval`` followed by '[low, high]' or '± half'."""
        value = row.values.get(column.key)
        if value is None:
            return "–"
        shown = self.shown(column, value.value)
        if not interval or value.low is None or value.high is None:
            return shown
        if column.timing:
            return f"{shown} [{self.shown(column, value.low)}, {self.shown(column, value.high)}]"
        return f"{shown} ± {self.shown(column, (value.high - value.low) / 2)}"

    def shown(self, column: Column, stored: float) -> str:
        decimals = column.decimals
        if decimals is None:
            decimals = decimals_for([r.values[column.key].value / column.scale for r in self.filled(column)])
        return fixed(stored / column.scale, decimals)

    @property
    def page(self) -> list[Column]:
        """The columns of the HTML table."""
        return [column for column in self.columns if column.shown != "csv"]

    def filled(self, column: Column) -> list[Row]:
        return [row for row in self.rows if column.key in row.values]


def summarise(records: Sequence[Mapping[str, Any]], *, group: bool = True) -> Summary:
    """Rows of the records, in their order; ``group`` gathers the seeds of a backend into one row."""
    chosen = columns(records)
    groups = groups_of(records) if group else [[record] for record in records]
    rows = [_row(label, members, chosen) for label, members in zip(labels_of(groups, group), groups, strict=True)]
    summary = Summary(rows, [column for column in chosen if any(column.key in row.values for row in rows)])
    for column in summary.columns:
        _find_best(summary, column)
    return summary


def _row(label: str, records: list[Mapping[str, Any]], chosen: Sequence[Column]) -> Row:
    good = [record for record in records if record.get("status") == "ok"]
    row = Row(label, records, "ok" if good else str(records[0].get("status")))
    row.leak, row.correct = _verdict(good, "leak"), _verdict(good, "correct")
    row.reasons = _reasons(records)
    proven = [record for record in good if _proven(record)]
    if len(proven) < len(good) and any(number(record, "cost.train_step_ms.median") for record in good):
        row.reasons.append(f"speed withheld: {_why_withheld(good)}")
    for column in chosen:
        value = _value(column, proven if column.kind == "speed" else good)
        if value is not None:
            row.values[column.key] = value
    return row


def _reasons(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why cells are not ok; the seed is named where not all of them say the same."""
    bad = [record for record in records if record.get("status") != "ok"]
    each = [[clean(reason) for reason in record.get("reasons") or ["no reason recorded"]] for record in bad]
    if len(bad) == len(records) and all(reasons == each[0] for reasons in each):
        return each[0]
    return [
        f"seed {record.get('seed')} {record.get('status')}: {'; '.join(reasons)}"
        for record, reasons in zip(bad, each, strict=True)
    ]


def _proven(record: Mapping[str, Any]) -> bool:
    """A correctness check of this backend passed on the device the speed was taken on."""
    here = dig(record, "environment.device")
    return dig(record, "correct.passed") is True and dig(record, "correct.device", here) == here


def _why_withheld(records: Sequence[Mapping[str, Any]]) -> str:
    failed = distinct(t.get("name") for r in records for t in dig(r, "correct.tests", []) if t.get("passed") is False)
    if failed:
        return f"correctness check failed ({', '.join(failed)})"
    if any(dig(record, "correct.passed") is False for record in records):
        return "correctness check failed"
    return "no correctness check of this backend on this device"


def _verdict(records: Sequence[Mapping[str, Any]], part: str) -> str:
    passed = [dig(record, f"{part}.passed") for record in records]
    if False in passed:
        return "fail"
    return "pass" if passed and all(verdict is True for verdict in passed) else "–"


def _value(column: Column, records: Sequence[Mapping[str, Any]]) -> Value | None:
    """One record: its number and interval. Several seeds: the median of the timings with the hull of their intervals,
    else the mean with Student's 95 % interval."""
    if column.timing:
        parts = [[number(r, f"{column.path}.{part}") for part in ("median", "low", "high")] for r in records]
        timings = [part for part in parts if part[0] is not None]
        if not timings:
            return None
        middles, lows, highs = ([x for x in part if x is not None] for part in zip(*timings, strict=True))
        return Value(_median(middles), min(lows, default=None), max(highs, default=None))
    values = [value for record in records if (value := number(record, column.path)) is not None]
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    if len(values) == 1 or column.kind != "quality":
        return Value(mean)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    half = (_T[len(values) - 2] if len(values) - 2 < len(_T) else 2.0) * spread / math.sqrt(len(values))
    return Value(mean, mean - half, mean + half)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _find_best(summary: Summary, column: Column) -> None:
    """Mark the best value of a column and those that cannot be told from it. A leaking model's quality is no rival."""
    rivals = {i: row for i, row in enumerate(summary.rows) if column.key in row.values and row.leak != "fail"}
    if column.better is None or len(rivals) < 2:
        return
    differ = [
        path.rpartition(".")[2]
        for path in _FIELDS[column.kind]
        if len({json.dumps(dig(r, path), sort_keys=True, default=str) for row in rivals.values() for r in row.good}) > 1
    ]
    if column.kind == "quality":
        differ += [key for key in _swept_apart(rivals.values()) if key.split(".")[0] in _OTHER_QUESTION]
    if differ:
        summary.incomparable[column.key] = differ
        return
    pick = min if column.better == "low" else max
    best = pick((row.values[column.key] for row in rivals.values()), key=lambda value: value.value)
    found = {i for i, row in rivals.items() if _tied(summary, column, row.values[column.key], best)}
    if len(found) < len(rivals):  # a column where all are equal has no best
        summary.best[column.key] = found


def _swept_apart(rows: Iterable[Row]) -> list[str]:
    """The swept keys in which rows differ."""
    swept = [row.records[0].get("swept") or {} for row in rows]
    return [key for key in dict.fromkeys(key for each in swept for key in each) if len({e.get(key) for e in swept}) > 1]


def _tied(summary: Summary, column: Column, value: Value, best: Value) -> bool:
    return value.overlaps(best) or summary.shown(column, value.value) == summary.shown(column, best.value)
