"""Training through Lightning, which only this package imports. Loaded at first use: reading settings needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnzoo.lazy import at_first_use

if TYPE_CHECKING:
    from attnzoo.training.evaluate import evaluate
    from attnzoo.training.folder import load_run
    from attnzoo.training.run import train

_HOME = {"train": "run", "load_run": "folder", "evaluate": "evaluate"}
__all__ = ["evaluate", "load_run", "train"]
__getattr__ = at_first_use(__name__, _HOME)
