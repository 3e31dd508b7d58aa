"""A benchmark in the terminal and as CSV. Neither torch nor Lightning is imported here."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnzoo.report.bars import bar_lines, bar_reasons
from attnzoo.report.columns import MIB
from attnzoo.report.groups import clean

if TYPE_CHECKING:
    from rich.console import Console

_COLUMNS = ("T", "backend", "ms", "95 %", "ratio", "MiB", "share", "kernel")
_PLAIN = (
    "backend", "level", "op", "T", "B", "H", "G", "D", "dtype", "status", "kernel", "flops", "bytes", "bound_ms",
    "share", "peak_memory_bytes", "process_peak_bytes", "state_bytes", "parameters", "compile_s",
)  # fmt: skip
_TIMING = ("median", "low", "high", "rounds", "first")
_RATIO = ("to", "median", "low", "high")


def print_bench(found: Mapping[str, Any], console: Console | None = None) -> None:
    """One table a work, growth with length below, and the reasons of whatever has no number.

    ``ratio`` is the time over the baseline's in the same rounds, ``share`` how near the time is to what the machine's
    matrix-product and copy rates allow.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    if found.get("bars"):
        _print_bars(found["bars"], console)
        return
    for op in dict.fromkeys(row["op"] for row in found["rows"]):
        table = Table(title=clean(op), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for column in _COLUMNS:
            words = column in ("backend", "kernel")
            table.add_column(column, justify="left" if words else "right", no_wrap=not words)
        for row in found["rows"]:
            if row["op"] == op:
                table.add_row(*(clean(text) for text in _line(row)))
        console.print(table, highlight=False, markup=False)
    for line in compile_lines(found["rows"]) + growth_lines(found.get("growth") or ()):
        console.print(clean(line), highlight=False, markup=False)
    empty = [row for row in found["rows"] if row.get("reasons")]
    for line in sorted({f"{row['backend']}, {row['op']}: {reason}" for row in empty for reason in row["reasons"]}):
        console.print(clean(line), highlight=False, markup=False)


def _print_bars(bars: Sequence[Mapping[str, Any]], console: Console) -> None:
    """The work as a heading, a line a peer below it."""
    last = None
    for bar, line in zip(bars, bar_lines(bars), strict=True):
        if line.work != last:
            console.print(clean(line.work), highlight=False, markup=False, soft_wrap=True)
        last = line.work
        judged = f"bar {line.bar}: {line.verdict}" if bar["bar"] else line.verdict
        text = f"  {line.ours}; {line.other}; {line.ratio}, {judged}"
        console.print(clean(text), highlight=False, markup=False, soft_wrap=True)
        if line.limit:
            text = f"    at most {line.at_most} by {line.limit}"
            console.print(clean(text), highlight=False, markup=False, soft_wrap=True)
    for reason in bar_reasons(bars):
        console.print(clean(reason), highlight=False, markup=False, soft_wrap=True)


def compile_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the first call of each compiled contestant took beyond a later one; no time in the table includes it."""
    return [
        f"{row['backend']}, {row['op']}, T {row['T']}: {row['compile_s']:.1f} s to compile"
        for row in rows
        if row.get("compile_s") is not None
    ]


def growth_lines(growth: Sequence[Mapping[str, Any]]) -> list[str]:
    """'linear, forward: time T^1.02 (0.97 to 1.08), declared T^1: as declared', one a fit."""
    lines = []
    for fit in growth:
        line = f"{fit['backend']}, {fit['op']}: {fit['quantity']} T^{fit['exponent']:.2f}"
        if fit["quantity"] == "time":
            line += f" ({fit['low']:.2f} to {fit['high']:.2f})"
        if fit.get("declared") is not None:
            line += f", declared T^{fit['declared']:g}: {fit['verdict'] or 'too short to tell'}"
        lines.append(line)
    return lines


def regression_lines(regressions: Sequence[Mapping[str, Any]]) -> list[str]:
    """What `attnzoo.measure.trend.regressions` found, one line each."""
    lines = []
    for change in regressions:
        where = f"{change['backend']}, {change['op']}"
        where += "" if change.get("T") is None else f", T {change['T']}"
        if change["what"] == "status":
            lines.append(f"{where}: was ok, now {change['after']}")
        else:
            word = "slower" if change["what"] == "time" else "larger"
            lines.append(f"{where}: {word}, {change['before']:.4g} → {change['after']:.4g} ({change['by']})")
    return lines


def bench_csv(found: Mapping[str, Any]) -> str:
    """All rows as CSV: one header line, empty cells where there is no number."""
    out = io.StringIO()
    header = [*_PLAIN, *(f"ms_{k}" for k in _TIMING), *(f"ratio_{k}" for k in _RATIO), "reasons"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for row in found["rows"]:
        timing = row.get("timing") or {}
        ratio = timing.get("ratio") or {}
        cells = [*(row.get(k) for k in _PLAIN), *(timing.get(k) for k in _TIMING), *(ratio.get(k) for k in _RATIO)]
        writer.writerow(["" if cell is None else cell for cell in [*cells, "; ".join(row.get("reasons") or ())]])
    return out.getvalue()


def _line(row: Mapping[str, Any]) -> list[str]:
    timing = row.get("timing") or {}
    if timing.get("median") is None:
        return [str(row["T"]), row["backend"], "–", row["status"], "–", "–", "–", row.get("kernel") or "–"]
    ratio, peak, share = timing.get("ratio"), row.get("peak_memory_bytes"), row.get("share")
    return [
        str(row["T"]),
        row["backend"],
        f"{timing['median']:.3g}",
        f"{timing['low']:.3g} to {timing['high']:.3g}",
        "1" if ratio is None else f"{ratio['median']:.3g}",
        "–" if peak is None else f"{peak / MIB:.1f}",
        "–" if share is None else f"{share:.0%}",
        row.get("kernel") or "–",
    ]
