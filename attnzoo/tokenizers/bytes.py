"""Bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from attnzoo.components import register
from attnzoo.options import Options
from attnzoo.tokenizers.base import Tokenizer


@register("bytes")
class ByteTokenizer(Tokenizer):
    """V = 256; a token is a byte."""

    source = "attnzoo"
    vocab_size = 256

    @classmethod
    def fit(cls, text: bytes, options: Options) -> ByteTokenizer:
        return cls()

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> ByteTokenizer:
        return cls()

    def encode_array(self, text: bytes) -> np.ndarray:
        """(n,) uint8."""
        return np.frombuffer(text, dtype=np.uint8)

    def decode(self, ids: Iterable[int]) -> str:
        """What is not UTF-8 becomes U+FFFD."""
        return bytes(ids).decode(errors="replace")

    def byte_lengths(self) -> np.ndarray:
        """(V,) bytes that a token stands for."""
        return np.ones(self.vocab_size, dtype=np.int64)

    def piece(self, token: int) -> str:
        return f"byte {token}"
