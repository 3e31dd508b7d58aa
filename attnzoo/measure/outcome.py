"""What an exception means for a cell: refused, oom or failed, with reasons a person can read."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import torch

import attnzoo
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


def where(error: BaseException) -> str | None:
    """'file.py:12 in attend': the innermost frame of whoever wrote the code that broke, neither torch nor Lightning nor
    Python's own; this package's where nobody else's stands in between. None for an exception that was not raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _foreign(frame.filename)]
    package = str(Path(attnzoo.__file__).parent)
    frames = [frame for frame in frames if not frame.filename.startswith(package)] or frames
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else None


_OTHERS = ("torch", "lightning", "lightning_utilities", "pytorch_lightning", "contextlib.py")
_LIBRARY = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}


def _foreign(file: str) -> bool:
    """Whether a file is of torch, of Lightning or of Python itself."""
    parts = Path(file).parts
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1] in _OTHERS
    return file.startswith("<") or any(home in Path(file).resolve().parents for home in _LIBRARY)
