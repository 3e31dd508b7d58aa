"""One number of a row from the records of its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from attnzoo.measure.interval import interval_of_mean
from attnzoo.report.columns import Column
from attnzoo.report.records import number, timing_set

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Value:
    """A number in stored units with its 95 % interval, where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


def value_of(column: Column, records: Records) -> Value | None:
    """One record: its number and interval. Several seeds: the median of the timings with the hull of their intervals, which
    are the variant's own where one timing stands in every record; else the mean, for quality with Student's 95 % interval."""
    if column.timing:
        parts = [[number(r, f"{column.path}.{part}") for part in ("median", "low", "high")] for r in records]
        timings = [part for part in parts if part[0] is not None]
        if not timings:
            return None
        middles, lows, highs = ([x for x in part if x is not None] for part in zip(*timings, strict=True))
        return Value(median(middles), min(lows, default=None), max(highs, default=None))
    values = list(by_seed(column, records).values())
    if not values:
        return None
    if len(values) == 1:
        return Value(values[0])  # as the record stores it
    mean, low, high = interval_of_mean(values)
    return Value(mean, low, high) if column.kind == "quality" else Value(mean)


def by_seed(column: Column, records: Records) -> dict[str, float]:
    """Seed -> its number, of those that have one."""
    pairs = ((str(record.get("seed")), number(record, column.path)) for record in records)
    return {seed: value for seed, value in pairs if value is not None}


def of_one_start(records: Records) -> list[Mapping[str, Any]]:
    """Those of the records whose timings were taken in the same rounds: the largest such set, of equal ones the last. Timings
    of different starts are never gathered into one number."""
    sets: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if number(record, "cost.train_step_ms.median") is not None:
            sets.setdefault(timing_set(record) or "unknown", []).append(record)
    timed = max(reversed(sets.values()), key=len, default=[])
    return timed or list(records)
