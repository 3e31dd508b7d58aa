"""What a model is trained on and scored by: text, or a synthetic task. Loaded at first use."""

from __future__ import annotations

from attnzoo.lazy import at_first_use

_HOME = {
    "Batch": "base",
    "Task": "base",
    "build_task": "build",
    "TextTask": "text",
    "RecallTask": "recall",
}

__all__ = sorted(_HOME)
__getattr__ = at_first_use(__name__, _HOME)
