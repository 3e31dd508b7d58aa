"""Where the numbers of a run go besides ``metrics.jsonl``: one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnzoo.lazy import at_first_use

if TYPE_CHECKING:
    from attnzoo.loggers.base import Logger

_HOME = {"Logger": "base"}
__all__ = ["Logger"]
__getattr__ = at_first_use(__name__, _HOME)
