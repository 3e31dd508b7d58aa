"""What of a record's cost has no number, and why. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOT_TIMED = "not timed: "


def failed_timings(cost: Mapping[str, Any]) -> dict[str, str]:
    """Name -> reason of each timing or measurement of memory in a ``cost`` that did not succeed.

    >>> failed_timings({"prefill_ms": {"median": None, "status": "failed", "reasons": ["cache is float32"]}})
    {'prefill_ms': 'cache is float32'}
    """
    measured = {key: value for key, value in cost.items() if isinstance(value, Mapping)}
    return {
        key: "; ".join(value.get("reasons") or ["no reason recorded"])
        for key, value in measured.items()
        if value.get("status", "ok") != "ok"
    }


def failure_lines(cost: Mapping[str, Any]) -> list[str]:
    """The same as sentences of a record's ``warnings``."""
    return [f"{NOT_TIMED}{key}: {reason}" for key, reason in failed_timings(cost).items()]
