"""A matrix of weights as a picture: characters for the terminal, SVG for files and pages. No torch here.

Shades are relative to the largest weight of their row: rows of a softmax get paler with their length, and the shape is
what is looked for. A weight that is not 0 never looks like one that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnzoo.report.marks import text

Matrix = Sequence[Sequence[float]]
SHADES = "·░▒▓█"
HALVES = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}
LEVELS = 8
POSITIVE, NEGATIVE, FRAME = "#1c5fb8", "#c2410c", "#8a939e"  # legible on white and on black


def relative(matrix: Matrix) -> list[list[float]]:
    """Each row over its largest size: values in -1 … 1."""
    tops = [max(map(abs, row), default=0.0) or 1.0 for row in matrix]
    return [[value / top for value in row] for row, top in zip(matrix, tops, strict=True)]


def pooled(matrix: Matrix, most: int) -> tuple[list[list[float]], int]:
    """At most ``most`` rows and columns: of each square of k x k entries the largest in size; and k."""
    k = -(-max(len(matrix), len(matrix[0])) // most)
    starts = range(0, len(matrix), k)
    strips = [[max(column, key=abs) for column in zip(*matrix[start : start + k], strict=True)] for start in starts]
    return [[max(strip[c : c + k], key=abs) for c in range(0, len(strip), k)] for strip in strips], k


def read_blocks(matrix: Matrix) -> list[str]:
    """Lines in which a half block is an entry that is not 0; two rows a line."""
    return ["".join(HALVES[top != 0, bottom != 0] for top, bottom in pair) for pair in _pairs(matrix)]


def shade_blocks(matrix: Matrix) -> list[str]:
    """Lines of shades by size, the larger of the two rows of a line."""
    return ["".join(_shade(max(map(abs, cell))) for cell in pair) for pair in _pairs(relative(matrix))]


def framed(lines: Sequence[str]) -> list[str]:
    """In a box."""
    bar = "─" * len(lines[0])
    return [f"┌{bar}┐", *(f"│{line}│" for line in lines), f"└{bar}┘"]


def panel(matrix: Matrix, x: float, y: float, size: float, label: str, shaded: bool = True) -> str:
    """An SVG group of ``size`` pixels: the cells that are not 0, shaded by size or all alike; blue > 0, orange < 0."""
    cell = size / max(len(matrix), len(matrix[0]))
    strokes = "".join(_strokes(relative(matrix), shaded))
    box = f'<rect width="{len(matrix[0])}" height="{len(matrix)}" fill="none"'
    frame = f'{box} stroke="{FRAME}" stroke-width="{1 / cell:.3g}"/>'
    return (
        f'<g transform="translate({x:g} {y:g}) scale({cell:.5g})" role="img" aria-label="{text(label)}">'
        f'<title>{text(label)}</title><g fill="none" shape-rendering="crispEdges">{strokes}</g>{frame}</g>'
    )


def picture(parts: str, width: float, height: float, name: str) -> str:
    """A whole SVG element around panels and captions."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    look = f'class="heat" role="img" aria-label="{text(name)}" font-family="system-ui, sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {look}>{parts}</svg>'


def caption(words: str, x: float, y: float) -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{FRAME}">{text(words)}</text>'


def _strokes(cells: Matrix, shaded: bool) -> Iterator[str]:
    """One path a level and sign; a run of equal cells is one stroke."""
    paths: dict[int, list[str]] = {}
    for row, values in enumerate(cells):
        levels = [_level(value, shaded) for value in values]
        start = 0
        for end in range(1, len(levels) + 1):
            if end == len(levels) or levels[end] != levels[start]:
                if levels[start]:
                    paths.setdefault(levels[start], []).append(f"M{start} {row + 0.5:g}h{end - start}")
                start = end
    for level, runs in sorted(paths.items()):
        colour = POSITIVE if level > 0 else NEGATIVE
        yield f'<path stroke="{colour}" stroke-opacity="{abs(level) / LEVELS:g}" d="{"".join(runs)}"/>'


def _level(value: float, shaded: bool) -> int:
    """-LEVELS … LEVELS; 0 for 0 alone."""
    if value == 0:
        return 0
    size = max(1, round(abs(value) * LEVELS)) if shaded else LEVELS
    return size if value > 0 or not shaded else -size


def _pairs(matrix: Matrix) -> Iterator[list[tuple[float, float]]]:
    """Rows two by two, as pairs of entries; an odd last row is paired with zeros."""
    for start in range(0, len(matrix), 2):
        below = matrix[start + 1] if start + 1 < len(matrix) else [0.0] * len(matrix[0])
        yield list(zip(matrix[start], below, strict=True))


def _shade(size: float) -> str:
    return " " if size == 0 else SHADES[min(round(size * (len(SHADES) - 1)), len(SHADES) - 1)]
