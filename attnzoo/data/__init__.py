"""Text: where it comes from, how it is split and how it becomes tokens. Loaded at first use; settings need no torch."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Corpus": "corpus",
    "load_corpus": "corpus",
    "check_disjoint": "corpus",
    "conditional_entropy": "corpus",
    "data_problems": "sources",
    "read_source": "sources",
    "Tokenizer": "tokenizer",
    "ByteTokenizer": "tokenizer",
    "BPETokenizer": "tokenizer",
    "tokenizer_from_state": "tokenizer",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'attnzoo.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"attnzoo.data.{_HOME[name]}"), name)
