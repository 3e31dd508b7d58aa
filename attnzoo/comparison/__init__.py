"""Comparing backends: one process a cell, then timing rounds with all of them, then the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnzoo.comparison.run import compare

__all__ = ["NEEDED", "compare"]

NEEDED = "attnzoo.training.preload"
"""What every cell needs: `attnzoo.processes.preloading` may load it while the request is still being read."""


def __getattr__(name: str) -> Any:
    if name != "compare":
        raise AttributeError(f"module 'attnzoo.comparison' has no attribute {name!r}")
    from attnzoo.comparison.run import compare

    return compare
