"""Text: read, split and made into tokens. Loaded at first use; settings need no torch."""

from __future__ import annotations

from attnzoo.lazy import at_first_use

_HOME = {
    "Splits": "corpus",
    "load_corpus": "corpus",
    "check_disjoint": "corpus",
    "conditional_entropy": "corpus",
    "data_problems": "sources",
    "read_source": "sources",
}

__all__ = sorted(_HOME)
__getattr__ = at_first_use(__name__, _HOME)
