"""The log of a run: what its process printed, and the traceback of each start that broke. No torch here."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from attnzoo.errors import LONGEST_TRACEBACK, both_ends, traceback_text

LOG = "log.txt"
STARTED_AGAIN = "--- started again"
"""Begins what a later process of the same cell printed."""
HEADER = "attnzoo: this start ended in"
"""Begins each traceback."""


def write_traceback(log: Path, error: BaseException) -> None:
    """Add it, whole."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    text = f"{HEADER} {type(error).__name__}, {now}\n{traceback_text(error)}"
    with suppress(OSError), open(log, "a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def last_traceback(log: Path) -> str:
    """What the last start left: its traceback, or what its process said last; of a length that can be read."""
    said = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    said = said.rpartition(STARTED_AGAIN)[2]
    return both_ends(said.rpartition(HEADER)[2].partition("\n")[2] if HEADER in said else said, LONGEST_TRACEBACK)
