"""The table of what people would use instead: ours, theirs, the ratio, the bar. Neither torch nor Lightning here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnzoo.report.columns import MIB

HEAD = ("work", "ours", "", "the other", "", "ratio", "95 %", "bar", "")
_SCALE = {"time": (1.0, "ms"), "state_bytes": (MIB, "MiB")}


def bar_cells(bars: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """One line a bar, in the columns of `HEAD`: names, figures with units, how many times as fast (or small), the verdict."""
    return [_cells(bar) for bar in bars]


def bar_reasons(bars: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why a line has no verdict, or none that this machine can give; each reason once."""
    return list(dict.fromkeys(f"{bar['work']}: {reason}" for bar in bars for reason in bar["reasons"]))


def _cells(bar: Mapping[str, Any]) -> list[str]:
    ratio, factor = bar.get("ratio"), bar.get("bar")
    state = ", state" if bar["quantity"] == "state_bytes" else ""
    figures = [text for side in ("ours", "peer") for text in (bar[side]["name"], _figure(bar[side], bar["quantity"]))]
    middle = f"{ratio['median']:.2f} ×" if ratio else "–"
    between = f"{ratio['low']:.2f} to {ratio['high']:.2f}" if ratio and ratio["low"] < ratio["high"] else ""
    return [f"{bar['work']}{state}", *figures, middle, between, f"{factor:.2f} ×" if factor else "–", bar["verdict"]]


def _figure(side: Mapping[str, Any], quantity: str) -> str:
    if side.get("median") is None:
        return "–"
    scale, unit = _SCALE[quantity]
    return f"{side['median'] / scale:.3g} {unit}"
