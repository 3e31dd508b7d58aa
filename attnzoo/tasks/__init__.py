"""What a model is trained on and scored by: text, or a synthetic task. Loaded at first use."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Batch": "base",
    "Task": "base",
    "TASKS": "build",
    "build_task": "build",
    "TextTask": "text",
    "RecallTask": "recall",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'attnzoo.tasks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"attnzoo.tasks.{_HOME[name]}"), name)
