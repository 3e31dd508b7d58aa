"""How text becomes ids, one file each. Loaded at first use."""

from __future__ import annotations

from attnzoo.lazy import at_first_use

_HOME = {
    "Tokenizer": "base",
    "ByteTokenizer": "bytes",
    "BPETokenizer": "bpe",
    "tokenizer_from_state": "state",
}

__all__ = sorted(_HOME)
__getattr__ = at_first_use(__name__, _HOME)
