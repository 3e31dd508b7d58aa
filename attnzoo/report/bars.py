"""The table of what people would use instead: ours, theirs, the ratio, the bar. Neither torch nor Lightning here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attnzoo.report.columns import MIB, three_digits

_SCALE = {"time": (1.0, "ms"), "state_bytes": (MIB, "MiB")}


class Line(NamedTuple):
    """One bar as text, names and figures with units.

    Args:
        ratio: how many times as fast (or small) ours is, with its interval.
        at_most, limit: the ratio that the limit alone reaches, its name and figure; empty where there is none.
    """

    work: str
    ours: str
    other: str
    ratio: str
    bar: str
    verdict: str
    at_most: str
    limit: str


HEAD = Line("work", "ours", "the other", "ratio [95 %]", "bar", "", "at most", "by the limit")


def bar_lines(bars: Sequence[Mapping[str, Any]]) -> list[Line]:
    """One a bar, in the columns of `HEAD`."""
    return [_line(bar) for bar in bars]


def bar_reasons(bars: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why a line has no verdict, or none that this machine can give; each reason once."""
    return list(dict.fromkeys(f"{bar['work']}: {reason}" for bar in bars for reason in bar["reasons"]))


def _line(bar: Mapping[str, Any]) -> Line:
    state = ", state" if bar["quantity"] == "state_bytes" else ""
    limit = bar.get("limit")  # older records have none
    return Line(
        work=f"{bar['work']}{state}", ours=_figure(bar["ours"], bar["quantity"]),
        other=_figure(bar["peer"], bar["quantity"]), ratio=_ratio(bar.get("ratio")),
        bar=f"{bar['bar']:.2f} ×" if bar.get("bar") else "–", verdict=bar["verdict"],
        at_most=_ratio(bar.get("at_most")) if limit else "", limit=_figure(limit, bar["quantity"]) if limit else "",
    )  # fmt: skip


def _ratio(ratio: Mapping[str, float] | None) -> str:
    """'1.23 × [1.06, 1.38]', without an interval where it is a point."""
    if not ratio:
        return "–"
    between = f" [{ratio['low']:.2f}, {ratio['high']:.2f}]" if ratio["low"] < ratio["high"] else ""
    return f"{ratio['median']:.2f} ×{between}"


def _figure(side: Mapping[str, Any], quantity: str) -> str:
    """'Hugging Face Llama: 1,380 ms'."""
    scale, unit = _SCALE[quantity]
    return f"{side['name']}: " + (
        "–" if side.get("median") is None else f"{three_digits(side['median'] / scale)} {unit}"
    )
