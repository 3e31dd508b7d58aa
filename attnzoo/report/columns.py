"""The columns of every report, defined once: the terminal, HTML, CSV and W&B tables all read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from attnzoo.measure.schema import path
from attnzoo.metrics.build import ALWAYS, always
from attnzoo.report.groups import short
from attnzoo.report.records import dig, mapping

MIB = 2**20
TITLE = 24  # characters of a title
LONGEST_HOW = 400

Better = Literal["low", "high"] | None


@dataclass(frozen=True)
class Column:
    """One number of a record.

    Args:
        key: the name in CSV, with the stored unit.
        title, unit: of the shown number.
        path: where the record keeps it.
        kind: quality, speed (shown only beside a passed correctness check), memory or size.
        how: how it was measured, one sentence.
        better: which direction is better, None when neither is.
        scale: stored value of one shown unit.
        decimals: fixed, or None for three significant digits of the column's smallest value.
        shown: everywhere (in the terminal where it fits), page (HTML) or csv (what the others say in another unit).
        timing: the record keeps ``median``, ``low`` and ``high`` there.
    """

    key: str
    title: str
    unit: str
    path: str
    kind: Literal["quality", "speed", "memory", "size"]
    how: str
    better: Better = "low"
    scale: float = 1.0
    decimals: int | None = None
    shown: Literal["everywhere", "page", "csv"] = "page"
    timing: bool = False

    @property
    def number_path(self) -> str:
        """Where the shown number itself is."""
        return f"{self.path}.median" if self.timing else self.path


_AFTER = (
    Column("train_step_ms", "train step", "ms", path("cost.train_step_ms"), "speed",
           "Forward, backward and optimiser step after a warm-up, all backends taking turns in each round; median of "
           "the rounds and distribution-free 95 % interval of the median.", shown="everywhere", timing=True),
    Column("train_step_ratio", "step", "", path("cost.train_step_ms.ratio"), "speed",
           "Train step over the baseline's in the same rounds.", decimals=2, shown="everywhere", timing=True),
    Column("train_peak_memory_bytes", "peak mem", "MiB", path("cost.train_peak_memory_bytes"), "memory",
           "Peak of one training step in a process of its own.", scale=MIB, shown="everywhere"),
    Column("train_tokens_per_s", "throughput", "tokens/s", path("cost.train_tokens_per_s"), "speed",
           "Tokens of a step over its median time.", None, decimals=0, shown="csv"),
    Column("train_matmul_share", "matmul share", "%", path("cost.train_matmul_share"), "speed",
           "Operations of a training step by formula, over its median time, as a share of the rate of a large matrix product "
           "measured in the same process: model FLOPs utilisation, of the rate this device reaches.", None, scale=0.01,
           decimals=1, shown="everywhere"),
    Column("prefill_ms", "prefill", "ms", path("cost.prefill_ms"), "speed",
           "One forward pass over the prompt, filling the cache.", shown="everywhere", timing=True),
    Column("decode_ms_per_token", "decode", "ms/token", path("cost.decode_ms_per_token"), "speed",
           "Tokens decoded one by one after the prefill, whole model.", shown="everywhere", timing=True),
    Column("cache_bytes", "cache", "KiB", path("cost.cache_bytes"), "memory",
           "Bytes the cache holds after the timed prefill and decode; checked against its formula.",
           scale=1024, shown="everywhere"),
    Column("parameters", "params", "M", path("cost.parameters"), "size", "Counted once where tied.", None, scale=1e6,
           shown="everywhere"),
    Column("train_flops", "FLOPs/step", "G", path("cost.train_flops"), "size",
           "Analytic, of one training step; a causal mask counts its own half only.", None, scale=1e9, shown="everywhere"),
)  # fmt: skip


def columns(records: Sequence[Mapping[str, Any]]) -> list[Column]:
    """The columns of these records: the fixed ones, one a synthetic task, and ratios named after their baseline."""
    tasks: dict[str, None] = {}
    metrics: dict[str, Mapping[str, Any]] = {**always()}
    for record in records:
        tasks.update(dict.fromkeys(mapping(record, "quality.task_accuracy")))
        more = mapping(record, "metrics")
        metrics = {name: mapping(more, name) for name in more if name not in metrics} | metrics
    quality = (_metric_column(name, metrics[name]) for name in sorted(metrics, key=_place) if _is_shown(metrics[name]))
    return [*quality, *map(_task_column, tasks), *(_named(column, records) for column in _AFTER)]


def _place(name: str) -> tuple[int, str]:
    """The metrics of every run first, in their order, then the others by name."""
    return (ALWAYS.index(name), "") if name in ALWAYS else (len(ALWAYS), name)


def _is_shown(said: Mapping[str, Any]) -> bool:
    return said.get("shown") != "record"


def _metric_column(name: str, said: Mapping[str, Any]) -> Column:
    """The column of a metric as its class, or the record, declares it; a record may come from anywhere."""
    decimals, shown, better = said.get("decimals"), said.get("shown"), said.get("better")
    return Column(
        name, short(said.get("title") or name, TITLE), short(said.get("unit") or "", TITLE), f"quality.{name}",
        "quality", short(said.get("how") or "", LONGEST_HOW), better if better in ("low", "high") else None,
        decimals=decimals if type(decimals) is int and 0 <= decimals <= 9 else None,
        shown=shown if shown in ("everywhere", "page", "csv") else "everywhere",
    )  # fmt: skip


def _task_column(name: str) -> Column:
    how = f"Share of right answers on the synthetic task {short(name, TITLE)!r}, trained for and scored apart from the text."
    place = f"quality.task_accuracy.{name}"
    return Column(
        f"{name}_accuracy", short(name, TITLE), "acc.", place, "quality", how, "high", decimals=2, shown="everywhere"
    )


def _named(column: Column, records: Sequence[Mapping[str, Any]]) -> Column:
    if column.key != "train_step_ratio":
        return column
    bases = {str(base) for record in records if (base := dig(record, "cost.train_step_ms.ratio.to"))}
    return replace(column, title=f"step × {short(bases.pop(), TITLE)}" if len(bases) == 1 else "step × baseline")


def decimals_for(values: Sequence[float]) -> int:
    """Decimals for a whole column: three significant digits of its smallest value, two when its largest is long."""
    sizes = [abs(value) for value in values if value]
    if not sizes:
        return 0
    three = 2 - math.floor(math.log10(min(sizes)))
    tidy = 3 - math.floor(math.log10(max(sizes)))
    return min(max(min(three, tidy), three - 1, 0), 3)


def three_digits(value: float) -> str:
    """Three significant digits, all of the whole ones, and never an exponent: 1370 -> '1,370', 13.26 -> '13.3'."""
    return fixed(value, decimals_for([value]))


def fixed(value: float, decimals: int) -> str:
    """``value`` with ``decimals``; more where it would show as nothing but zeros."""
    if value and abs(value) < 0.5 * 10.0**-decimals:
        return f"{value:.2g}"
    return f"{value:,.{decimals}f}"
