"""Where text comes from, one file each. Loaded at first use."""

from __future__ import annotations

from attnzoo.lazy import at_first_use

_HOME = {"Corpus": "base"}

__all__ = sorted(_HOME)
__getattr__ = at_first_use(__name__, _HOME)
