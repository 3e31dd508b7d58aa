"""A benchmark in the terminal and as CSV. Neither torch nor Lightning is imported here."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnzoo.report.bars import bar_lines, bar_reasons
from attnzoo.report.bench_rows import cells, growth_cells, named, parts, quantities
from attnzoo.report.csv import plain
from attnzoo.report.groups import clean
from attnzoo.report.table import PIPE_WIDTH

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_SHOWN = (
    "timing.median", "timing.ratio.median", "timing.rounds", "peak_memory_bytes", "state_bytes", "share", "tokens_per_s",
    "matmul_share",
)  # fmt: skip
_PLAIN = (
    "backend", "level", "op", "T", "B", "H", "G", "n_kv_heads", "D", "dtype", "status", "verified", "kernel", "flops", "bytes",
    "bound_ms", "share", "peak_memory_bytes", "process_peak_bytes", "state_bytes", "parameters", "compile_s",
)  # fmt: skip
_TIMING = ("median", "low", "high", "rounds", "first")
_RATIO = ("to", "median", "low", "high")


def print_bench(found: Mapping[str, Any], console: Console | None = None) -> None:
    """One table a work and shape, growth with length below, and the reasons of whatever has no number.

    ``ratio`` is the time over the baseline's in the same rounds, ``of the roofline`` how near the time is to what the
    machine's matrix-product and copy rates allow.
    """
    from rich.console import Console

    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    if found.get("bars"):
        _print_bars(found["bars"], console)
        return
    for title, rows in parts(found["rows"]).items():
        console.print(_table(title, rows), highlight=False, markup=False)
    empty = [row for row in found["rows"] if row.get("reasons")]
    reasons = sorted({f"{row['backend']}, {row['op']}: {reason}" for row in empty for reason in row["reasons"]})
    for line in compile_lines(found["rows"]) + growth_lines(found.get("growth") or ()) + reasons:
        console.print(clean(line), highlight=False, markup=False, soft_wrap=True)


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=clean(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("T", justify="right", no_wrap=True)
    table.add_column("backend", overflow="fold", min_width=12)
    shown = [quantity for quantity in quantities(rows) if quantity.path in _SHOWN]
    for quantity in shown:
        table.add_column(f"{quantity.title}\n{quantity.unit}".rstrip(), justify="right", no_wrap=True)
    table.add_column("kernel", overflow="fold")
    columns = [cells(rows, quantity) for quantity in shown]
    for number, row in enumerate(rows):
        texts = [f"{cell.text} {cell.between}".rstrip() for cell in (column[number] for column in columns)]
        kernel = row.get("kernel") or (row["status"] if row["status"] != "ok" else "–")
        table.add_row(*(clean(text) for text in (row.get("T"), named(row), *texts, kernel)))
    return table


def _print_bars(bars: Sequence[Mapping[str, Any]], console: Console) -> None:
    """The work as a heading, a line a peer below it."""
    last = None
    for bar, line in zip(bars, bar_lines(bars), strict=True):
        if line.work != last:
            console.print(clean(line.work), highlight=False, markup=False, soft_wrap=True)
        last = line.work
        judged = f"bar {line.bar}: {line.verdict}" if bar.get("bar") else line.verdict
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
        f"{row['backend']}, {row['op']}, T {row.get('T')}: {row['compile_s']:.1f} s to compile"
        for row in rows
        if row.get("compile_s") is not None
    ]


def growth_lines(growth: Sequence[Mapping[str, Any]]) -> list[str]:
    """'linear, forward: time T^1.02 (0.97 to 1.08), declared T^1: as declared', one a fit."""
    lines = []
    for backend, work, quantity, exponent, between, declared, _, verdict in growth_cells(growth):
        interval = f" ({between})" if between else ""
        claim = f", declared {declared}: {verdict}" if declared else ""
        lines.append(f"{backend}, {work}: {quantity} {exponent}{interval}{claim}")
    return lines


def regression_lines(regressions: Sequence[Mapping[str, Any]]) -> list[str]:
    """What `attnzoo.measure.trend.regressions` found, one line each, fit for a terminal."""
    lines = []
    for change in regressions:
        where = f"{change['backend']}, {change['op']}"
        where += "" if change.get("T") is None else f", T {change['T']}"
        if change["what"] == "status":
            lines.append(f"{where}: was ok, now {change['after']}")
        else:
            word = "slower" if change["what"] == "time" else "larger"
            lines.append(f"{where}: {word}, {change['before']:.4g} → {change['after']:.4g} ({change['by']})")
    return [clean(line) for line in lines]


def alone_lines(found: Mapping[str, Any], pairs: Sequence[tuple[Mapping[str, Any], Any]], path: str) -> list[str]:
    """What has no counterpart in an older benchmark, so that nothing is said of it: how many, and each by name."""
    kind, total = ("lines", found["bars"]) if "bars" in found else ("rows", found["rows"])
    paired = {id(new) for new, _ in pairs}
    alone = [row for row in total if id(row) not in paired]
    lines = [f"{len(alone)} of {len(total)} {kind} have no counterpart in {path}:"] if alone else []
    for row in alone:
        named = [row[key] for key in ("work", "quantity", "backend", "level", "op", "dtype") if row.get(key)]
        sizes = [f"{key} {row[key]}" for key in ("T", "B", "H", "G", "D") if row.get(key) is not None]
        lines.append(f"  {', '.join([*named, *sizes])}")
    return [clean(line) for line in lines]


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
        writer.writerow(["" if cell is None else plain(cell) for cell in [*cells, "; ".join(row.get("reasons") or ())]])
    return out.getvalue()
