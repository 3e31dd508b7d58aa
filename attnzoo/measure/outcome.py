"""What an exception means for a cell: refused, oom or failed, with reasons a person can read."""

from __future__ import annotations

import torch

from attnzoo.errors import MOST_REASONS, AttnzooError, Refused, shortened

_CPU_ALLOCATOR = ("can't allocate memory", "not enough memory")


def outcome(error: BaseException) -> tuple[str, list[str]]:
    """(status, reasons) of a run that ended in this exception.

    >>> outcome(Refused("flex cannot compute this", ["no backward on cpu"]))
    ('refused', ['no backward on cpu'])
    >>> outcome(ZeroDivisionError("division by zero"))
    ('failed', ['ZeroDivisionError: division by zero'])
    """
    if isinstance(error, Refused):
        return "refused", _short(error.reasons or [error.message])
    if isinstance(error, AttnzooError):
        return "failed", _short([error.message, *error.reasons])
    lines = str(error).strip().splitlines() or ["no message"]
    said = shortened(f"{type(error).__name__}: {lines[0]}")
    starved = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(s in str(error) for s in _CPU_ALLOCATOR)
    return ("oom" if starved else "failed"), [said]


def _short(reasons: list[str]) -> list[str]:
    kept = [shortened(str(reason)) for reason in reasons[:MOST_REASONS]]
    return kept if len(kept) == len(reasons) else [*kept, f"and {len(reasons) - len(kept)} more"]
