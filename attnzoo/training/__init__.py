"""Training through Lightning, which only this package imports. Loaded at first use: reading settings needs no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnzoo.training.evaluate import evaluate
    from attnzoo.training.folder import load_run
    from attnzoo.training.run import train

_HOME = {"train": "run", "load_run": "folder", "evaluate": "evaluate"}
__all__ = ["evaluate", "load_run", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'attnzoo.training' has no attribute {name!r}")
    return getattr(importlib.import_module(f"attnzoo.training.{_HOME[name]}"), name)
