"""What every tokenizer gives: text as ids and back, and how many bytes an id stands for. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from attnzoo.components import Component
from attnzoo.options import Options

if TYPE_CHECKING:
    import numpy as np


class Tokenizer(Component):
    """Text as ids. One writes `fit`, `encode_array`, `decode`, `byte_lengths`, and `state` with `from_state`, by which the
    folder of a run keeps it.

    Lossless on UTF-8: decoding gives the text back, and the bytes of its ids sum to those of the text, since bits a byte are
    counted by them.

    Attributes:
        vocab_size: V.
    """

    kind: ClassVar[str] = "tokenizer"
    vocab_size: int

    @classmethod
    def fit(cls, text: bytes, options: Options) -> Tokenizer:
        """One for this text, the training split alone; deterministic."""
        raise NotImplementedError(f"{cls.__name__} cannot be fitted")

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Tokenizer:
        """The inverse of `state`."""
        raise NotImplementedError(f"{cls.__name__} cannot be read back")

    def state(self) -> dict[str, Any]:
        """What it is made from again, as JSON; another adds its own keys to these."""
        return {"name": self.name}

    def encode_array(self, text: bytes) -> np.ndarray:
        """(n,) ids, uint8 or int32."""
        raise NotImplementedError(f"{type(self).__name__} encodes nothing")

    def encode(self, text: str | bytes) -> list[int]:
        """The same, as a list."""
        return self.encode_array(text.encode() if isinstance(text, str) else text).tolist()

    def decode(self, ids: Iterable[int]) -> str:
        """What is not UTF-8 becomes U+FFFD."""
        raise NotImplementedError(f"{type(self).__name__} decodes nothing")

    def byte_lengths(self) -> np.ndarray:
        """(V,) bytes that an id stands for."""
        raise NotImplementedError(f"{type(self).__name__} counts no bytes")

    def piece(self, token: int) -> str:
        """The spelling of one id."""
        return self.decode([token])


def differ(there: Tokenizer, here: Tokenizer) -> str:
    """How two tokenizers differ in what their ids stand for; '' where text becomes the same ids.

    >>> from attnzoo.tokenizers import ByteTokenizer
    >>> differ(ByteTokenizer(), ByteTokenizer())
    ''
    """
    if there.state() == here.state():
        return ""
    if there.name != here.name:
        return f"there {there.name}, here {here.name}"
    both = range(min(there.vocab_size, here.vocab_size))
    other = [i for i in both if there.piece(i) != here.piece(i)]
    if there.vocab_size == here.vocab_size and not other:
        return f"the same {len(both)} pieces, but text is cut into them by other rules"
    first = f", the first {other[0]}: there {there.piece(other[0])!r}, here {here.piece(other[0])!r}" if other else ""
    return f"{there.name} with {there.vocab_size} tokens there, {here.vocab_size} here; {len(other)} ids stand for others{first}"
