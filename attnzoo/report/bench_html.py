"""bench.html: cost over length, from what `attnzoo bench` measured."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnzoo.files import write_text_atomic
from attnzoo.report.bars import HEAD, bar_lines
from attnzoo.report.columns import MIB, decimals_for, fixed
from attnzoo.report.groups import clean, distinct
from attnzoo.report.marks import Series
from attnzoo.report.page import render
from attnzoo.report.plots import Plot
from attnzoo.report.records import dig, number
from attnzoo.report.scales import Axis, compact, tokens
from attnzoo.report.svg import Chart

_MEASURES = (
    ("timing.median", 1.0, "time", "ms"),
    ("peak_memory_bytes", MIB, "peak memory", "MiB"),
)
_SHAPE = ("B", "H", "G", "D", "dtype")


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
    parts = dict.fromkeys((str(row.get("level")), str(row.get("op"))) for row in rows)
    groups = {part: [row for row in rows if (str(row.get("level")), str(row.get("op"))) == part] for part in parts}
    plots = [_plot(part, group, backends, measure) for part, group in groups.items() for measure in _MEASURES]
    return render(
        "bench.html.j2",
        title=_title(bench, backends),
        machine=[
            (str(k).replace("_", " "), clean(v)) for k, v in dict(bench.get("machine") or {}).items() if v is not None
        ],
        plots=[plot for plot in plots if plot],
        tables=[(f"{level}: {op}", _lines(group, backends)) for (level, op), group in groups.items()],
        reasons=_reasons(rows),
        growth=_growth(bench.get("growth") or []),
        bars=(HEAD, bar_lines(bench.get("bars") or [])),
    )


def _title(bench: Mapping[str, Any], backends: Sequence[str]) -> str:
    if bench.get("bars"):
        return "Against what people would use instead"
    return f"Cost of {backends[0]} over length" if len(backends) == 1 else f"Cost over length, {len(backends)} backends"


def _plot(
    part: tuple[str, str],
    rows: Sequence[Mapping[str, Any]],
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
            f"{backend}: {y:.3g} {unit} at {x:,} tokens, {row.get('kernel') or '?'}"
            for (x, y), row in zip(points, mine, strict=True)
        ]
        lengths |= {x for x, _ in points}
        series.append(Series(clean(backend), style, points, notes, y_interval=[_interval(row, path) for row in mine]))
    if len(lengths) < 2:
        return None
    title = f"{part[0].capitalize()}, {part[1].replace('_', ' ')}: {name}"
    x = Axis("sequence length, tokens", True, ticks=sorted(lengths), text=tokens)
    chart = Chart(title, x, Axis(f"{name}, {unit}", True, "low"), series)
    return Plot(title, chart.svg(), "Both axes logarithmic: slope 1 is linear, slope 2 quadratic.")


def _interval(row: Mapping[str, Any], path: str) -> tuple[float, float] | None:
    low, high = number(row, "timing.low"), number(row, "timing.high")
    return (low, high) if path.startswith("timing") and low and high else None


def _lines(rows: Sequence[Mapping[str, Any]], backends: Sequence[str]) -> list[dict[str, Any]]:
    """Table rows: (number to sort by, shown text) for each measure, with the interval of the time."""
    digits = {
        path: decimals_for([value / scale for row in rows if (value := number(row, path)) is not None])
        for path, scale, _, _ in _MEASURES
    }
    lines = []
    for row in rows:
        line = {name: row.get(name) for name in ("backend", "T", "kernel", "status")}
        line["style"] = backends.index(str(row.get("backend")))
        line["shape"] = " ".join(f"{key} {row[key]}" for key in _SHAPE if row.get(key) is not None)
        numbers: list[tuple[float | None, str, str]] = []
        for path, scale, _, _ in _MEASURES:
            value, between = number(row, path), _interval(row, path)
            text = "–" if value is None else fixed(value / scale, digits[path])
            shown = "–".join(fixed(end / scale, digits[path]) for end in between) if between else ""
            numbers.append((value, text, shown))
        flops = number(row, "flops")
        numbers.append((flops, "–" if flops is None else compact(flops), ""))
        lines.append({**line, "numbers": numbers})
    return lines


def _reasons(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """(backend, status, reasons), each set of reasons once."""
    found = ((str(r.get("backend")), str(r.get("status")), "; ".join(map(str, r.get("reasons") or []))) for r in rows)
    return [line for line in dict.fromkeys(found) if line[2]]


def _growth(lines: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Whatever columns the growth table has, numbers shortened."""
    names = list(dict.fromkeys(str(key) for line in lines for key in line))
    shown = [
        [f"{v:.3g}" if isinstance(v := line.get(name), float) else "–" if v is None else clean(v) for name in names]
        for line in lines
    ]
    return names, shown
