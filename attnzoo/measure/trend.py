"""What rows of a benchmark say together: growth with length, and what became slower since an older one. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnzoo.errors import RequestError
from attnzoo.measure.interval import interval_of_median

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
        {…the rows' key but T…, quantity, exponent, low, high, declared, lengths, verdict} where at least two lengths ran.
        Of time it is the median over the rounds, each of which timed all lengths, with its distribution-free interval.
    """
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        if row["status"] == "ok":
            groups.setdefault(tuple(row[k] for k in KEY if k != "T"), []).append(row)
    found = []
    for group in groups.values():
        group = sorted(group, key=lambda row: row["T"])[-FITTED:]
        if len({row["T"] for row in group}) < 2:
            continue
        for quantity, read in (("time", _samples), ("memory", _memory)):
            if not all(read(row) for row in group):
                continue
            lengths = [row["T"] for row in group]
            each = [slope(lengths, values) for values in zip(*(read(row) for row in group), strict=False)]
            fit = interval_of_median(each)
            head: Row = {key: group[0].get(key) for key in (*KEY, "n_kv_heads") if key != "T"}
            claim = declared.get((head["backend"], head["op"], quantity))
            verdict = None
            if claim is not None and max(lengths) >= TELLING:
                verdict = "as declared" if fit.low <= claim + SLACK else "grows faster than declared"
            numbers = {"exponent": fit.median, "low": fit.low, "high": fit.high, "declared": claim}
            found.append({**head, "quantity": quantity, **numbers, "lengths": lengths, "verdict": verdict})
    return found


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Exponent of y in x by least squares on logarithms.

    >>> round(slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    log_x, log_y = [math.log(value) for value in x], [math.log(value) for value in y]
    mean = sum(log_x) / len(log_x)
    spread = sum((value - mean) ** 2 for value in log_x)
    return sum((value - mean) * other for value, other in zip(log_x, log_y, strict=True)) / spread


def regressions(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What became slower, larger, or stopped working between two benchmarks of the same work.

    Times are compared by their ratio to the baseline of the same run where both have one, so that a slower machine is
    no slower backend. Slower means: the intervals do not meet, and the medians differ by more than `NOISE`. Of races
    against peers only the ratios to the peers are compared.

    Returns:
        {…the row's key…, what: "time" | "memory" | "status", by, before, after} each.

    Raises:
        RequestError: as `counterparts`.
    """
    shared = counterparts(new, old)
    if "bars" in new:
        return _lost(shared)
    found = []
    for row, past in shared:
        head = {k: row.get(k) for k in KEY}
        if past["status"] == "ok" != row["status"]:
            found.append({**head, "what": "status", "by": None, "before": "ok", "after": row["status"]})
        found += [{**head, **change} for change in (_slower(row, past), _larger(row, past)) if change]
    return found


def counterparts(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[tuple[Row, Row]]:
    """The rows (of races: the lines) of two benchmarks that are of the same work, in pairs.

    Raises:
        RequestError: there are none, with what keeps them apart.
    """
    if "bars" in new:
        lines = {_of_line(bar): bar for bar in old.get("bars") or [] if bar.get("ratio")}
        pairs = [(bar, was) for bar in new["bars"] if (was := lines.get(_of_line(bar)))]
        if not pairs:
            raise RequestError(
                "the two benchmarks have no line in common", ["lines are matched by work, ours and peers"]
            )
        return pairs
    before = {_of_row(row): row for row in old["rows"]}
    pairs = [(row, before[_of_row(row)]) for row in new["rows"] if _of_row(row) in before]
    if not pairs:
        raise RequestError("the two benchmarks have no row in common", _apart(new["rows"], old["rows"]))
    return pairs


def _apart(new: Sequence[Row], old: Sequence[Row]) -> list[str]:
    """The columns in which no two rows agree, with both sides."""
    reasons = []
    for column in KEY:
        here, there = ({row.get(column) for row in rows} for rows in (new, old))
        if not here & there:
            sides = (", ".join(sorted(map(str, side))) or "nothing" for side in (here, there))
            reasons.append("{}: here {}, there {}".format(column, *sides))
    return reasons or [f"each column has values in common, but no row agrees in all of {', '.join(KEY)}"]


def _of_row(row: Row) -> tuple:
    return tuple(row.get(k) for k in KEY)


def _of_line(bar: Row) -> tuple:
    """What a line compares: the fastest of its peers may be another one in every run."""
    return bar["work"], bar["quantity"], bar["ours"]["name"], tuple(bar.get("peers") or [bar["peer"]["name"]])


def _lost(shared: Sequence[tuple[Row, Row]]) -> list[dict[str, Any]]:
    """Lines in which ours is fewer times as fast (or as small) as the best of its peers than it was, or is not measured any
    more."""
    found = []
    for bar, was in shared:
        head = {"backend": bar["ours"]["name"], "op": bar["work"], "T": None}
        now, then = bar.get("ratio"), was["ratio"]
        if not now:
            found.append({**head, "what": "status", "by": None, "before": "ok", "after": bar["verdict"]})
        elif now["high"] < then["low"] and now["median"] * (1 + NOISE) < then["median"]:
            by = f"times as fast as {bar['peer']['name']}"
            what = "time" if bar["quantity"] == "time" else "memory"
            found.append({**head, "what": what, "by": by, "before": then["median"], "after": now["median"]})
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


def _samples(row: Row) -> list[float]:
    return (row.get("timing") or {}).get("samples") or []


def _memory(row: Row) -> list[float]:
    return [row["peak_memory_bytes"]] if row.get("peak_memory_bytes") else []
