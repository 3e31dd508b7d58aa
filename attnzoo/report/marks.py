"""What a plot draws for a series: its line, markers, whiskers and name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from attnzoo.report.groups import clean
from attnzoo.report.scales import Scale

COLOURS = 10
LONGEST = 24  # letters of a name in a plot
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
_MARKERS = ("circle", "square", "triangle", "diamond", "cross", "plus", "down", "hexagon")

Spot = tuple[float, float]


@dataclass
class Series:
    """One line or set of points.

    Args:
        label: shown once; empty for another line of a series already named.
        style: index that decides colour, marker and dash; the same everywhere on a page.
        points: (x, y) in data units.
        notes: a hover text for each point.
        x_interval, y_interval: (low, high) for each point, drawn as whiskers.
        line, hollow: draw a line; leave the markers unfilled (what should not be taken at face value).
    """

    label: str
    style: int
    points: Sequence[Spot]
    notes: Sequence[str] = ()
    x_interval: Sequence[Spot | None] = ()
    y_interval: Sequence[Spot | None] = ()
    line: bool = True
    hollow: bool = False

    @property
    def name(self) -> str:
        """The label as it is drawn; a long one goes without its middle, since what disqualifies a row stands at its end."""
        half = LONGEST // 2
        return self.label if len(self.label) <= LONGEST else f"{self.label[:half]}…{self.label[1 - half :]}"

    def values(self, axis: int) -> list[float]:
        """Everything an axis has to hold: 0 is x, 1 is y."""
        ends = [end for interval in (self.x_interval, self.y_interval)[axis] if interval for end in interval]
        return [point[axis] for point in self.points] + ends

    def svg(self, x: Scale, y: Scale) -> str:
        spots = [(x(px), y(py)) for px, py in self.points]
        return f'<g class="series c{self.style % COLOURS}">{"".join(self._parts(spots, x, y))}</g>'

    def _parts(self, spots: Sequence[Spot], x: Scale, y: Scale) -> Iterator[str]:
        if self.line and len(spots) > 1:
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py in spots)
            yield f'<polyline class="line" points="{path}"{dash(self.style)}/>'
        for (_, py), across in zip(spots, self.x_interval, strict=False):
            if across:
                yield f'<path class="whisker" d="M{x(across[0]):.1f} {py:.1f}H{x(across[1]):.1f}"/>'
        for (px, _), along in zip(spots, self.y_interval, strict=False):
            if along:
                yield f'<path class="whisker" d="M{px:.1f} {y(along[0]):.1f}V{y(along[1]):.1f}"/>'
        notes = [*self.notes, *[""] * (len(spots) - len(self.notes))]
        for (px, py), note in zip(spots, notes, strict=True):
            yield marker(self.style, px, py, 3.2 if self.line else 5.0, note, self.hollow)


def marker(style: int, x: float, y: float, size: float = 4.0, note: str = "", hollow: bool = False) -> str:
    """The marker of a style, with its hover text."""
    kind = _MARKERS[style % len(_MARKERS)]
    look = "mark hollow" if hollow else "mark stroked" if kind in ("cross", "plus") else "mark"
    title = f"<title>{text(note)}</title>" if note else ""
    if kind == "circle":
        return f'<circle class="{look}" cx="{x:.1f}" cy="{y:.1f}" r="{size}">{title}</circle>'
    return f'<path class="{look}" d="{_outline(kind, x, y, size)}">{title}</path>'


def _outline(kind: str, x: float, y: float, size: float) -> str:
    if kind in ("cross", "plus"):
        arms = ((1, 1), (1, -1)) if kind == "cross" else ((1.3, 0), (0, 1.3))
        return "".join(f"M{x - a * size:.1f} {y - b * size:.1f}L{x + a * size:.1f} {y + b * size:.1f}" for a, b in arms)
    corners, turn, grow = {
        "square": (4, 0.125, 1.25), "diamond": (4, 0.0, 1.35), "triangle": (3, 0.0, 1.35), "down": (3, 0.5, 1.35),
        "hexagon": (6, 0.0, 1.2),
    }[kind]  # fmt: skip
    angles = [2 * math.pi * (k / corners + turn) for k in range(corners)]
    path = (f"{x + grow * size * math.sin(a):.1f} {y - grow * size * math.cos(a):.1f}" for a in angles)
    return f"M{'L'.join(path)}Z"


def dash(style: int) -> str:
    """The dash attribute of a style; neighbours in colour differ in it."""
    pattern = _DASHES[style % len(_DASHES)]
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def swatch(style: int) -> str:
    """A sample of a style for tables: its line and marker."""
    line = f'<path class="line" d="M1 7H29"{dash(style)}/>'
    mark = marker(style, 15, 7)
    return f'<svg class="swatch c{style % COLOURS}" viewBox="0 0 30 14" aria-hidden="true">{line}{mark}</svg>'


def text(raw: object) -> str:
    """Escaped, and without characters that XML forbids."""
    return escape(clean(raw))
