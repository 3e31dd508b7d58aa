"""A small SVG writer for line and scatter plots that a page holds inline.

Colours are CSS classes (``c0`` … ``c9``, ``grid``, ``axis``, ``tick``, …), so the page decides on light and dark. A
series is told apart by colour, marker and dash at once, and is named at its line or point.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnzoo.report.marks import COLOURS, Series, Spot, text
from attnzoo.report.scales import Axis, Scale

WIDTH, HEIGHT = 560, 372
TOP, RIGHT, BOTTOM, LEFT = 14, 18, 50, 60
_CHAR, _LINE = 7.0, 14.0  # width of a letter and height of a line of the labels, at 12 px

Box = tuple[float, float, float, float]


@dataclass
class Chart:
    """A plot: axes, series, and what is drawn beneath them.

    Args:
        name: what a screen reader says.
        levels: horizontal reference lines, (y, text).
        front: corners of a staircase, the best compromises.
    """

    name: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    levels: Sequence[tuple[float, str]] = ()
    front: Sequence[Spot] = ()

    def svg(self) -> str:
        """The whole element; well-formed XML. It is as high as the names of its lines need."""
        lines = any(series.line for series in self.series)
        named = [series for series in self.series if series.label and series.points]
        longest = max(len(series.name) for series in self.series)
        height = max(HEIGHT, TOP + BOTTOM + _LINE * len(named)) if lines else HEIGHT
        right = WIDTH - (min(24 + _CHAR * longest, 0.4 * WIDTH) if lines else RIGHT)
        x = self.x.scale([value for s in self.series for value in s.values(0)], LEFT, right)
        ys = [value for s in self.series for value in s.values(1)]
        y = self.y.scale([*ys, *(level for level, _ in self.levels)], height - BOTTOM, TOP)
        parts = [*_axes(self.x, self.y, x, y), *self._beneath(x, y), *(s.svg(x, y) for s in self.series)]
        parts += _end_names(named, x, y) if lines else _point_names(named, x, y)
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" class="chart" role="img"'
        return f'{head} aria-label="{text(self.name)}">{"".join(parts)}</svg>'

    def _beneath(self, x: Scale, y: Scale) -> Iterator[str]:
        for level, words in self.levels:
            yield f'<path class="level" d="M{x.start:.1f} {y(level):.1f}H{x.end:.1f}"/>'
            yield _label(words, "note", x.end - 4, y(level) + 13, "end")
        if len(self.front) > 1:
            first, *rest = [(x(px), y(py)) for px, py in self.front]
            steps = "".join(f"H{px:.1f}V{py:.1f}" for px, py in rest)
            path = f"M{first[0]:.1f} {first[1]:.1f}{steps}"
            yield f'<path class="front" d="{path}"><title>no point is better on both</title></path>'


def _axes(x_axis: Axis, y_axis: Axis, x: Scale, y: Scale) -> Iterator[str]:
    for tick in y.ticks:
        yield f'<path class="grid" d="M{x.start} {y(tick):.1f}H{x.end:.1f}"/>'
        yield _label(y_axis.text(tick), "tick", x.start - 8, y(tick) + 4, "end")
    for tick in x.ticks:
        yield f'<path class="grid" d="M{x(tick):.1f} {y.start}V{y.end}"/>'
        yield _label(x_axis.text(tick), "tick", x(tick), y.start + 18, "middle")
    yield f'<path class="axis" d="M{x.start} {y.start}H{x.end:.1f}"/>'
    across, along = (x.start + x.end) / 2, (y.start + y.end) / 2
    yield _label(_arrow(x_axis), "title", across, y.start + BOTTOM - 10, "middle")
    turned = f'<g transform="translate(15 {along:.1f}) rotate(-90)">'
    yield f"{turned}{_label(_arrow(y_axis), 'title', 0, 0, 'middle')}</g>"


def _arrow(axis: Axis) -> str:
    """The title, with an arrow to the good end (the y axis is turned: its right is up)."""
    return {"low": f"← {axis.title}", "high": f"{axis.title} →"}.get(axis.better or "", axis.title)


def _label(words: str, look: str, x: float, y: float, anchor: str) -> str:
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text(words)}</text>'


def _name(series: Series, x: float, middle: float) -> str:
    return f'<text class="name c{series.style % COLOURS}" x="{x:.1f}" y="{middle + 4:.1f}">{text(series.name)}</text>'


def _end_names(named: Sequence[Series], x: Scale, y: Scale) -> Iterator[str]:
    """Names right of the last points, pushed apart, in the order of the lines."""
    ordered = sorted(named, key=lambda series: y(series.points[-1][1]))
    wanted = [y(series.points[-1][1]) for series in ordered]
    for series, middle, end in zip(ordered, _apart(wanted, y.end, y.start), wanted, strict=True):
        start = x(series.points[-1][0])
        yield f'<path class="leader" d="M{start + 5:.1f} {end:.1f}L{x.end + 10:.1f} {middle:.1f}"/>'
        yield _name(series, x.end + 13, middle)


def _apart(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Positions at least a line apart, as near to the wanted ones as pushing gets: down, then up from the end."""
    placed: list[float] = []
    for position in wanted:
        placed.append(max(position, placed[-1] + _LINE if placed else low))
    limit = high
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], limit)
        limit = placed[index] - _LINE
    return placed


def _point_names(named: Sequence[Series], x: Scale, y: Scale) -> Iterator[str]:
    """Names beside the points, where they cover neither each other nor a point."""
    spots = [(x(series.points[-1][0]), y(series.points[-1][1])) for series in named]
    taken: list[Box] = [(px - 6, py - 6, px + 6, py + 6) for px, py in spots]
    for series, (px, py) in zip(named, spots, strict=True):
        width = _CHAR * len(series.name)
        free = (box for box in _places(px, py, width) if _is_free(box, taken, x, y))
        left, top, right, bottom = next(free, (px + 9, py - _LINE / 2, px + 9 + width, py + _LINE / 2))
        taken.append((left, top, right, bottom))
        near_x, near_y = min(max(px, left), right), min(max(py, top), bottom)
        if math.hypot(near_x - px, near_y - py) > 12:
            yield f'<path class="leader" d="M{px:.1f} {py:.1f}L{near_x:.1f} {near_y:.1f}"/>'
        yield _name(series, left, (top + bottom) / 2)


def _places(px: float, py: float, width: float) -> Iterator[Box]:
    """Right, left, above, below, then the diagonals, further and further away."""
    for far in (0, 14, 28, 42, 56):
        side, rise = 10 + far / 2, 14 + far
        for left, middle in (
            (px + side, py), (px - side - width, py), (px - width / 2, py - rise), (px - width / 2, py + rise),
            (px + side, py - rise), (px + side, py + rise),
            (px - side - width, py - rise), (px - side - width, py + rise),
        ):  # fmt: skip
            yield (left, middle - _LINE / 2, left + width, middle + _LINE / 2)


def _is_free(box: Box, taken: Sequence[Box], x: Scale, y: Scale) -> bool:
    inside = x.start + 2 <= box[0] and box[2] <= WIDTH - 2 and box[1] >= y.end and box[3] <= y.start - 2
    apart = (box[2] <= t[0] or t[2] <= box[0] or box[3] <= t[1] or t[3] <= box[1] for t in taken)
    return inside and all(apart)
