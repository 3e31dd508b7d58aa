"""What an exception means for a cell: refused, oom or failed, with reasons a person can read."""

from __future__ import annotations

import torch

from attnzoo.errors import AttnzooError, Refused

_CPU_ALLOCATOR = ("can't allocate memory", "not enough memory")


def outcome(error: BaseException) -> tuple[str, list[str]]:
    """(status, reasons) of a run that ended in this exception.

    >>> outcome(Refused("flex cannot compute this", ["no backward on cpu"]))
    ('refused', ['no backward on cpu'])
    >>> outcome(ZeroDivisionError("division by zero"))
    ('failed', ['ZeroDivisionError: division by zero'])
    """
    if isinstance(error, Refused):
        return "refused", error.reasons or [error.message]
    if isinstance(error, AttnzooError):
        return "failed", [error.message, *error.reasons]
    lines = str(error).strip().splitlines() or ["no message"]
    said = f"{type(error).__name__}: {lines[0]}"
    starved = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(s in str(error) for s in _CPU_ALLOCATOR)
    return ("oom" if starved else "failed"), [said]
