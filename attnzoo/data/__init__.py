"""Text: where it comes from, how it is split and how it becomes tokens. Loaded at first use; settings need no torch."""

from __future__ import annotations

from attnzoo.lazy import at_first_use

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
__getattr__ = at_first_use(__name__, _HOME)
