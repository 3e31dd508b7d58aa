"""What the terminal and the page share of a benchmark's rows. Neither torch nor Lightning here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attnzoo.report.columns import MIB, decimals_for, fixed
from attnzoo.report.groups import clean
from attnzoo.report.records import number

Row = Mapping[str, Any]


class Quantity(NamedTuple):
    """One number of a row; ``interval`` is the path of what holds its low and high, ``decimals`` None suits the column."""

    path: str
    title: str
    unit: str
    scale: float = 1.0
    interval: str | None = None
    decimals: int | None = None


class Cell(NamedTuple):
    """A number to sort by, its text, and its interval's."""

    value: float | None
    text: str
    between: str = ""


QUANTITIES = (
    Quantity("timing.median", "time", "ms", interval="timing"),
    Quantity("timing.ratio.median", "ratio", "× base", interval="timing.ratio", decimals=2),
    Quantity("timing.rounds", "rounds", "", decimals=0),
    Quantity("peak_memory_bytes", "peak mem", "MiB", MIB),
    Quantity("process_peak_bytes", "process peak", "MiB", MIB),
    Quantity("state_bytes", "state", "MiB", MIB),
    Quantity("share", "of the roofline", "%", 0.01, decimals=0),
    Quantity("tokens_per_s", "tokens/s", "", decimals=0),
    Quantity("matmul_share", "of the matmul rate", "%", 0.01, decimals=0),
    Quantity("compile_s", "to compile", "s"),
    Quantity("parameters", "parameters", "M", 1e6),
    Quantity("flops", "operations", "G", 1e9),
)


def parts(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """'operator: forward, B 1, H 4, D 64, float32' -> its rows, in order of appearance. A race is told by its work alone."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        sizes = "" if row.get("level") == "peers" else f", {shape(row)}"
        found.setdefault(f"{row.get('level')}: {row.get('op')}{sizes}", []).append(row)
    return found


def shape(row: Row) -> str:
    """'B 1, H 4, D 64, float32', with G where one was asked for: what all backends of a table have in common."""
    sizes = {"B": row.get("B"), "H": row.get("H"), "G": row.get("n_kv_heads"), "D": row.get("D")}
    return ", ".join([*(f"{name} {size}" for name, size in sizes.items() if size is not None), str(row.get("dtype"))])


def is_unverified(row: Row) -> bool:
    """It was timed, and no finished check of its backend stands beside it."""
    return row.get("verified") is False and number(row, "timing.median") is not None


def named(row: Row) -> str:
    """The backend as tables and plots show it: with what its times may not claim."""
    name = clean(row.get("backend"))
    return f"{name} (unverified)" if is_unverified(row) else name


def quantities(rows: Sequence[Row]) -> list[Quantity]:
    """Those that any row has."""
    return [quantity for quantity in QUANTITIES if any(number(row, quantity.path) is not None for row in rows)]


def cells(rows: Sequence[Row], quantity: Quantity) -> list[Cell]:
    """The column; '–' where a row has no such number."""
    values = [number(row, quantity.path) for row in rows]
    decimals = quantity.decimals
    if decimals is None:
        decimals = decimals_for([value / quantity.scale for value in values if value is not None])
    column = []
    for row, value in zip(rows, values, strict=True):
        ends = [number(row, f"{quantity.interval}.{end}") for end in ("low", "high")] if quantity.interval else []
        between = ", ".join(fixed(end / quantity.scale, decimals) for end in ends if end is not None)
        text = "–" if value is None else fixed(value / quantity.scale, decimals)
        column.append(Cell(value, text, between and f"[{between}]"))
    return column


GROWTH = ("backend", "work", "", "grows as", "95 %", "declared", "over", "")


def growth_cells(growth: Sequence[Row]) -> list[list[str]]:
    """One line a fit, in the columns of `GROWTH`."""
    several = len({shape(fit) for fit in growth if "dtype" in fit}) > 1
    lines = []
    for fit in growth:
        claim, lengths = fit.get("declared"), fit.get("lengths") or []
        between = f"{fit['low']:.2f} to {fit['high']:.2f}" if fit["low"] < fit["high"] else ""
        lines.append([
            fit["backend"], f"{fit['op']}, {shape(fit)}" if several else fit["op"], fit["quantity"],
            f"T^{fit['exponent']:.2f}", between, "" if claim is None else f"T^{claim:g}",
            f"{lengths[0]:,} to {lengths[-1]:,}" if lengths else "",
            fit.get("verdict") or ("" if claim is None else "too short to tell"),
        ])  # fmt: skip
    return lines
