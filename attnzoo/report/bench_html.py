"""bench.html: cost over length, from what `attnzoo bench` measured."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnzoo.files import write_text_atomic
from attnzoo.report.bars import HEAD, bar_lines
from attnzoo.report.bench_rows import (
    GROWTH,
    Quantity,
    Row,
    cells,
    growth_cells,
    is_unverified,
    named,
    parts,
    quantities,
)
from attnzoo.report.columns import MIB
from attnzoo.report.groups import clean, distinct
from attnzoo.report.marks import Series
from attnzoo.report.page import render
from attnzoo.report.plots import Plot
from attnzoo.report.records import dig, number
from attnzoo.report.scales import Axis, tokens
from attnzoo.report.svg import Chart

_MEASURES = (
    ("timing.median", 1.0, "time", "ms"),
    ("peak_memory_bytes", MIB, "peak memory", "MiB"),
)


def write_bench_report(bench: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write the page and return its path.

    Args:
        bench: ``{"rows": [{backend, level, op, T, B, H, G, D, dtype, timing: {median, low, high, rounds}, flops,
            peak_memory_bytes, kernel, status, reasons}], "growth": [{…}], "machine": {…}}``; times in ms.

    Raises:
        RequestError: the file cannot be written.
    """
    return write_text_atomic(path, bench_html(bench))


def bench_html(bench: Mapping[str, Any]) -> str:
    """The page as text."""
    rows = bench.get("rows") or []
    backends = distinct(row.get("backend") for row in rows)
    groups = parts(rows)
    plots = [_plot(title, group, backends, measure) for title, group in groups.items() for measure in _MEASURES]
    shown = quantities(rows)
    return render(
        "bench.html.j2",
        title=_title(bench, backends),
        machine=[_fact(k, v) for k, v in dict(bench.get("machine") or {}).items() if v is not None],
        plots=[plot for plot in plots if plot],
        columns=shown,
        tables=[(title, _lines(group, backends, shown)) for title, group in groups.items()],
        reasons=_reasons(rows),
        growth=(GROWTH, growth_cells(bench.get("growth") or [])),
        bars=(HEAD, bar_lines(bench.get("bars") or [])),
    )


def _title(bench: Mapping[str, Any], backends: Sequence[str]) -> str:
    if bench.get("bars"):
        return "Against what people would use instead"
    return f"Cost of {backends[0]} over length" if len(backends) == 1 else f"Cost over length, {len(backends)} backends"


def _plot(
    part: str,
    rows: Sequence[Row],
    backends: Sequence[str],
    measure: tuple[str, float, str, str],
) -> Plot | None:
    path, scale, name, unit = measure
    series, lengths = [], set()
    for style, backend in enumerate(backends):
        mine = [row for row in rows if row.get("backend") == backend and number(row, path) and number(row, "T")]
        mine.sort(key=lambda row: row["T"])
        if not mine:
            continue
        points = [(row["T"], dig(row, path) / scale) for row in mine]
        notes = [
            f"{named(row)}: {y:.3g} {unit} at {x:,} tokens, {row.get('kernel') or '?'}"
            for (x, y), row in zip(points, mine, strict=True)
        ]
        lengths |= {x for x, _ in points}
        label = next((named(row) for row in mine if is_unverified(row)), clean(backend))
        ends = [_interval(row, path) for row in mine]
        series.append(Series(label, style, points, notes, y_interval=ends, hollow=label != clean(backend)))
    if len(lengths) < 2:
        return None
    title = f"{part[0].upper()}{part[1:].replace('_', ' ')}: {name}"
    x = Axis("sequence length, tokens", True, ticks=sorted(lengths), text=tokens)
    chart = Chart(title, x, Axis(f"{name}, {unit}", True, "low"), series)
    return Plot(title, chart.svg(), "Both axes logarithmic: slope 1 is linear, slope 2 quadratic.")


def _interval(row: Row, path: str) -> tuple[float, float] | None:
    low, high = number(row, "timing.low"), number(row, "timing.high")
    return (low, high) if path.startswith("timing") and low and high else None


def _fact(name: str, value: Any) -> tuple[str, str]:
    """A line about the machine, rates in the units people use."""
    for end, unit in (("_flops_per_s", "GFLOP/s"), ("_bytes_per_s", "GB/s")):
        if end in name and isinstance(value, float):
            return name.replace(end, " rate").replace("_", " "), f"{value / 1e9:,.0f} {unit}"
    return name.replace("_", " "), clean(value)


def _lines(rows: Sequence[Row], backends: Sequence[str], shown: Sequence[Quantity]) -> list[dict[str, Any]]:
    """Table rows: the cells of each quantity with the interval below."""
    columns = [cells(rows, quantity) for quantity in shown]
    return [
        {name: row.get(name) for name in ("T", "G", "kernel", "status")}
        | {
            "backend": named(row),
            "style": backends.index(str(row.get("backend"))),
            "numbers": [column[n] for column in columns],
        }
        for n, row in enumerate(rows)
    ]


def _reasons(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """(backend, status, reasons), each set of reasons once."""
    found = ((str(r.get("backend")), str(r.get("status")), "; ".join(map(str, r.get("reasons") or []))) for r in rows)
    return [line for line in dict.fromkeys(found) if line[2]]
