"""What rows of a benchmark say together: growth with length, and what became slower since an older one. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnzoo.errors import RequestError

Row = Mapping[str, Any]

FITTED = 3  # of the lengths, the largest: short ones show fixed costs rather than growth
TELLING = 2048  # tokens; below, windows and chunks are not yet small against the length, and nothing is judged
SLACK = 0.2  # an exponent this far above the declared one is still called as declared
KEY = ("backend", "level", "op", "T", "B", "H", "G", "D", "dtype")
NOISE = 0.05  # relative: a smaller loss is not reported, however narrow the intervals


def growth(rows: Sequence[Row], declared: Mapping[tuple[str, str, str], float]) -> list[dict[str, Any]]:
    """The exponent of time and of peak memory in T for each backend and work, by least squares on logarithms.

    Args:
        declared: (backend, op, "time" or "memory") -> the exponent the backend claims; absent where it claims none.

    Returns:
        {backend, level, op, quantity, exponent, low, high, declared, lengths, verdict} where at least two lengths ran.
        The interval is what the slope becomes when every median lies at the end of its interval that moves it most.
    """
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        if row["status"] == "ok":
            groups.setdefault(tuple(row[k] for k in KEY if k != "T"), []).append(row)
    found = []
    for group in groups.values():
        group = sorted(group, key=lambda row: row["T"])[-FITTED:]
        for quantity, read in (("time", _time), ("memory", _memory)):
            points = [(row["T"], *ends) for row in group if (ends := read(row)) is not None]
            if len({point[0] for point in points}) < 2:
                continue
            exponent, low, high = slope(points)
            head = {key: group[0][key] for key in ("backend", "level", "op")}
            claim = declared.get((head["backend"], head["op"], quantity))
            lengths = [point[0] for point in points]
            verdict = None
            if claim is not None and max(lengths) >= TELLING:
                verdict = "as declared" if low <= claim + SLACK else "grows faster than declared"
            found.append(
                {**head, "quantity": quantity, "exponent": exponent, "low": low, "high": high, "declared": claim,
                 "lengths": lengths, "verdict": verdict}
            )  # fmt: skip
    return found


def slope(points: Sequence[tuple[float, float, float, float]]) -> tuple[float, float, float]:
    """Exponent of y in x, with its lowest and highest value, from (x, y, y's low end, y's high end).

    >>> [round(s, 3) for s in slope([(1, 1, 1, 1), (2, 4, 4, 8)])]
    [2.0, 2.0, 3.0]
    """
    x = [math.log(point[0]) for point in points]
    mean = sum(x) / len(x)
    weights = [(value - mean) / sum((other - mean) ** 2 for other in x) for value in x]
    middle = sum(w * math.log(p[1]) for w, p in zip(weights, points, strict=True))
    low = sum(w * math.log(p[2] if w > 0 else p[3]) for w, p in zip(weights, points, strict=True))
    high = sum(w * math.log(p[3] if w > 0 else p[2]) for w, p in zip(weights, points, strict=True))
    return middle, low, high


def regressions(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What became slower, larger, or stopped working between two benchmarks of the same work.

    Times are compared by their ratio to the baseline of the same run where both have one, so that a slower machine is
    no slower backend. Slower means: the intervals do not meet, and the medians differ by more than `NOISE`.

    Returns:
        {…the row's key…, what: "time" | "memory" | "status", by, before, after} each.

    Raises:
        RequestError: the two share no row.
    """
    before = {tuple(row.get(k) for k in KEY): row for row in old.get("rows", [])}
    shared = [(row, before[key]) for row in new["rows"] if (key := tuple(row.get(k) for k in KEY)) in before]
    if not shared:
        raise RequestError("the two benchmarks have no row in common", [f"rows are matched by {', '.join(KEY)}"])
    found = []
    for row, past in shared:
        head = {k: row.get(k) for k in KEY}
        if past["status"] == "ok" != row["status"]:
            found.append({**head, "what": "status", "by": None, "before": "ok", "after": row["status"]})
        found += [{**head, **change} for change in (_slower(row, past), _larger(row, past)) if change]
    return found


def _slower(row: Row, past: Row) -> dict[str, Any] | None:
    now, then = row.get("timing") or {}, past.get("timing") or {}
    by = "ms"
    if now.get("ratio") and then.get("ratio") and now["ratio"]["to"] == then["ratio"]["to"]:
        now, then, by = now["ratio"], then["ratio"], f"ratio to {now['ratio']['to']}"
    if now.get("median") is None or then.get("median") is None:
        return None
    if now["low"] <= then["high"] or now["median"] <= then["median"] * (1 + NOISE):
        return None
    return {"what": "time", "by": by, "before": then["median"], "after": now["median"]}


def _larger(row: Row, past: Row) -> dict[str, Any] | None:
    now, then = row.get("peak_memory_bytes"), past.get("peak_memory_bytes")
    if not now or not then or now <= then * (1 + NOISE):
        return None
    return {"what": "memory", "by": "bytes", "before": then, "after": now}


def _time(row: Row) -> tuple[float, float, float] | None:
    timing = row.get("timing") or {}
    return (timing["median"], timing["low"], timing["high"]) if timing.get("median") else None


def _memory(row: Row) -> tuple[float, float, float] | None:
    peak = row.get("peak_memory_bytes")
    return (peak, peak, peak) if peak else None
