"""The plots of a comparison, each from the rows alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnzoo.report.columns import Column
from attnzoo.report.marks import Series, Spot
from attnzoo.report.records import items, number, points
from attnzoo.report.rows import Row, Summary, Value
from attnzoo.report.scales import Axis, tokens
from attnzoo.report.svg import Chart


@dataclass(frozen=True)
class Plot:
    """A finished figure: heading, SVG, and what a reader must know."""

    title: str
    svg: str
    caption: str = ""


def plots(summary: Summary) -> list[Plot]:
    """Every plot the rows have data for."""
    tasks = [column for column in summary.columns if column.path.startswith("quality.task_accuracy.")]
    found = [_loss_curve(summary), *(_task_curve(summary, column) for column in tasks)]
    found += [_against(summary, "val_bits_per_byte", column.key) for column in tasks]
    found += [_against(summary, key, "val_bits_per_byte") for key in ("train_step_ms", "train_peak_memory_bytes")]
    found += [_over_length(summary, *part) for part in _LENGTHS]
    return [plot for plot in found if plot]


_LENGTHS = (
    ("train_step_ms", "Train step over length", "train step, ms", True),
    ("peak_memory_bytes", "Peak memory over length", "peak memory, MiB", False),
)


def _loss_curve(summary: Summary) -> Plot | None:
    series = _curves(summary, "quality.curve", lambda value: f"{value:.3f} nats")
    chart = Chart(
        "validation loss over tokens", Axis("tokens seen"), Axis("validation loss, nats", better="low"), series
    )
    return _plot(
        "Validation loss over tokens", chart, summary, "A line a seed; points are full passes over the validation text."
    )


def _task_curve(summary: Summary, column: Column) -> Plot | None:
    name, path = column.title, column.path.replace("task_accuracy", "task_curve", 1)
    series = _curves(summary, path, lambda value: f"accuracy {value:.2f}")
    chances = {
        number(r, column.path.replace("task_accuracy", "task_chance", 1)) for row in summary.rows for r in row.good
    } - {None}
    levels = [(chance, "chance") for chance in chances if chance is not None]
    y = Axis(f"{name} accuracy", better="high", limits=(-0.08, 1.04))
    chart = Chart(f"{name} accuracy over tokens", Axis("tokens seen"), y, series, levels)
    return _plot(f"Accuracy on {name} over tokens", chart, summary, column.how)


def _curves(summary: Summary, path: str, say: Any) -> list[Series]:
    series = []
    for style, row in enumerate(summary.rows):
        label = row.title
        for record in row.good:
            curve = points(record, path)
            notes = [f"{row.title}, seed {record.get('seed')}: {say(y)} after {x:,.0f} tokens" for x, y in curve]
            if curve:
                series.append(Series(label, style, curve, notes, hollow=bool(row.unranked)))
                label = ""
    return series


def _against(summary: Summary, x_key: str, y_key: str) -> Plot | None:
    """A point a row: one column against another."""
    by_key = {column.key: column for column in summary.columns}
    if x_key not in by_key or y_key not in by_key:
        return None
    x, y = by_key[x_key], by_key[y_key]
    series, honest = [], []
    for style, row in enumerate(summary.rows):
        if x_key not in row.values or y_key not in row.values:
            continue
        (px, across), (py, along) = _scaled(x, row.values[x_key]), _scaled(y, row.values[y_key])
        note = f"{row.title}: {_say(summary, row, x)}, {_say(summary, row, y)}"
        drawn = [(x, px, across), (y, py, along)]
        if any(c.kind != "quality" and min((value, *(ends or ()))) <= 0 for c, value, ends in drawn):  # a log axis
            continue
        out = bool(row.unranked)
        series.append(Series(row.title, style, [(px, py)], [note], [across], [along], line=False, hollow=out))
        honest += [] if out else [(px, py)]
    fair = not any(ranking.differ for key in (x_key, y_key) if (ranking := summary.rankings.get(key)))
    front = _front(honest, x.better == "low", y.better == "low") if fair else []
    chart = Chart(f"{y.title} against {x.title}", _axis(x), _axis(y), series, front=front)
    caption = (
        "Dotted: the rows whose points no other beats on both axes; where whiskers overlap, that is not decided. "
        if len(front) > 1
        else ""
    )
    return _plot(f"{_capital(_name(y))} against {_name(x)}", chart, summary, f"{caption}Whiskers: 95 % intervals.")


def _over_length(summary: Summary, key: str, title: str, axis: str, speed: bool) -> Plot | None:
    series, lengths = [], set()
    scale = 1.0 if speed else 2.0**20
    for style, row in enumerate(summary.rows):
        if speed and "train_step_ms" not in row.values:  # withheld there, withheld here
            continue
        sweeps = (items(record, "cost.length_sweep") for record in row.good)
        sweep = next(filter(None, sweeps), [])
        spots = [
            (n, y / scale)
            for part in sweep
            if (n := number(part, "n_tokens")) and (y := number(part, key)) and min(n, y) > 0
        ]
        unit = "ms" if speed else "MiB"
        notes = [f"{row.title}: {y:.3g} {unit} at {n:,.0f} tokens" for n, y in spots]
        lengths |= {n for n, _ in spots}
        if spots:
            series.append(Series(row.title, style, spots, notes, hollow=bool(row.unranked)))
    if len(lengths) < 2:
        return None
    chart = Chart(
        title,
        Axis("sequence length, tokens", True, ticks=sorted(lengths), text=tokens),
        Axis(axis, True, "low"),
        series,
    )
    return _plot(
        title, chart, summary, "Both axes logarithmic: a straight line of slope 1 is linear, of slope 2 quadratic."
    )


def _plot(title: str, chart: Chart, summary: Summary, caption: str) -> Plot | None:
    if not chart.series:
        return None
    there = {series.style for series in chart.series}
    missing = [f"{row.label} ({_absent(row)})" for style, row in enumerate(summary.rows) if style not in there]
    return Plot(title, chart.svg(), f"{caption} Not shown: {', '.join(missing)}." if missing else caption)


def _absent(row: Row) -> str:
    if row.status != "ok":
        return row.status
    return "speed withheld" if any("speed withheld" in reason for reason in row.reasons) else "not measured"


def _scaled(column: Column, value: Value) -> tuple[float, Spot | None]:
    if value.low is None or value.high is None:
        return value.value / column.scale, None
    return value.value / column.scale, (value.low / column.scale, value.high / column.scale)


def _say(summary: Summary, row: Row, column: Column) -> str:
    return f"{_name(column)} {summary.text(row, column, interval=True)} {column.unit}".rstrip()


def _name(column: Column) -> str:
    return {"acc.": f"{column.title} accuracy"}.get(
        column.unit, {"peak mem": "peak memory"}.get(column.title, column.title)
    )


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _axis(column: Column) -> Axis:
    unit = f", {column.unit}" if column.unit not in ("", "acc.") else ""
    return Axis(f"{_name(column)}{unit}", column.kind in ("speed", "memory"), column.better,
                limits=(-0.08, 1.04) if column.unit == "acc." else None)  # fmt: skip


def _front(points: list[Spot], low_x: bool, low_y: bool) -> list[Spot]:
    """The points that no other beats on both axes, from the best x on."""
    sign_x, sign_y = (1 if low_x else -1), (1 if low_y else -1)
    front: list[Spot] = []
    for point in sorted(points, key=lambda p: (sign_x * p[0], sign_y * p[1])):
        if not front or sign_y * point[1] < sign_y * front[-1][1]:
            front.append(point)
    return front
