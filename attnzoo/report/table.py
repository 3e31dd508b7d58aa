"""The comparison in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from attnzoo.report.columns import Column
from attnzoo.report.groups import clean
from attnzoo.report.rows import Summary, summarise

PIPE_WIDTH = 140  # columns when the output is no terminal, whose width nobody knows
_STYLES = {"ok": "green", "refused": "yellow", "pass": "green", "fail": "bold red", "–": "dim"}

# what a narrow terminal goes without, the first first
_DROPPED = (
    "train_flops",
    "train_matmul_share",
    "cache_bytes",
    "prefill_ms",
    "parameters",
    "±",
    "kernel",
    "[]",
    "train_step_ratio",
    "decode_ms_per_token",
)


def print_table(records: Sequence[Mapping[str, Any]], console: Console | None = None, *, group: bool = True) -> None:
    """Print one row a backend (``group``: with its seeds gathered) or a cell, and the reasons below it.

    Intervals are 95 %. A narrow terminal gets fewer columns; all of them are in HTML and CSV.
    """
    console = console or Console()
    summary = summarise(records, group=group)
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    notes = [row.note for row in summary.rows if row.said]
    for count in range(len(_DROPPED) + 1):
        dropped = _DROPPED[:count]
        table = _table(summary, dropped)
        if Measurement.get(console, console.options.update(max_width=1000), table).maximum <= console.width:
            break
    console.print(table, highlight=False)
    for mark, note in enumerate(notes, 1):
        console.print(Text.assemble((f"[{mark}] ", "bold"), clean(note)), soft_wrap=not console.is_terminal)
    for words in [*_seeds(summary, dropped), *summary.remarks]:
        console.print(Text(clean(words), style="dim"), soft_wrap=not console.is_terminal)


def _table(summary: Summary, dropped: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    shown = [column for column in summary.columns if column.shown == "everywhere" and column.key not in dropped]
    several = len({len(row.records) for row in summary.rows}) > 1
    kernel = "kernel" not in dropped
    table.add_column(
        "backend", overflow="fold", min_width=min(16, max((len(row.title) for row in summary.rows), default=0))
    )
    if several:
        table.add_column("seeds", justify="right")
    table.add_column("status", no_wrap=True)
    for column in shown:
        table.add_column(f"{column.title}\n{column.unit}".rstrip(), justify="right", no_wrap=True)
    for title in ("leak", "correct", *(["kernel"] if kernel else [])):
        table.add_column(title, no_wrap=True)
    mark = 0
    for index, row in enumerate(summary.rows):
        mark += bool(row.said)
        status = Text(row.status_text, _STYLES.get(row.status, "red"))
        cells = [
            Text(row.title, "bold red" if row.unranked else ""),
            *([Text(str(len(row.records)))] if several else []),
        ]
        cells.append(status.append(f" [{mark}]", "bold") if row.said else status)
        cells += [_number(summary, index, column, dropped) for column in shown]
        cells += [Text(verdict, style=_STYLES[verdict]) for verdict in (row.leak, row.correct)]
        table.add_row(*cells, *([Text(row.kernel or "–")] if kernel else []))
    return table


def _number(summary: Summary, index: int, column: Column, dropped: Sequence[str]) -> Text:
    """The ratio, prefill and decoding go without their intervals: the line would be crowded."""
    mark = {"quality": "±", "speed": "[]" if column.key == "train_step_ms" else None}.get(column.kind)
    interval = mark is not None and mark not in dropped
    text = summary.text(summary.rows[index], column, interval=interval)
    best = summary.best.get(column.key) == index
    return Text(text, style="bold cyan" if best else "dim" if text == "–" else "")


def _seeds(summary: Summary, dropped: Sequence[str]) -> list[str]:
    counts = {len(row.records) for row in summary.rows}
    if len(counts) != 1 or max(counts) < 2:
        return []
    shown = "means" if "±" in dropped else "mean ± half the 95 % interval"
    return [f"{counts.pop()} seeds a row: {shown}"]
