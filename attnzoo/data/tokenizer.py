"""Bytes, or byte-level BPE trained on the training split alone. Both are lossless on UTF-8 text. No torch here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from attnzoo.data.sources import TOKENIZERS, installed
from attnzoo.errors import RequestError, shortened, unknown
from attnzoo.terminal import one_line


class Tokenizer(Protocol):
    """``state`` is JSON; `tokenizer_from_state` gives an equal tokenizer back. ``piece`` is the spelling of one token."""

    name: str
    vocab_size: int

    def encode(self, text: str | bytes) -> list[int]: ...
    def decode(self, ids: Iterable[int]) -> str: ...
    def encode_array(self, text: bytes) -> np.ndarray: ...
    def byte_lengths(self) -> np.ndarray: ...
    def piece(self, token: int) -> str: ...
    def state(self) -> dict[str, Any]: ...


class ByteTokenizer:
    """V = 256; a token is a byte."""

    name = "bytes"
    vocab_size = 256

    def encode(self, text: str | bytes) -> list[int]:
        return list(_as_bytes(text))

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

    def state(self) -> dict[str, Any]:
        return {"name": self.name}


class BPETokenizer:
    """Byte-level BPE (Sennrich et al., arXiv:1508.07909, over bytes as in GPT-2). No token spans a line end.

    Args:
        model: the JSON of a `tokenizers.Tokenizer`.
    """

    name = "bpe"

    def __init__(self, model: str) -> None:
        self._model = _library().Tokenizer.from_str(model)
        self.vocab_size = self._model.get_vocab_size()

    @classmethod
    def train(cls, text: bytes, vocab_size: int) -> BPETokenizer:
        """Deterministic; a short text gives fewer than ``vocab_size`` tokens."""
        library, model = _library(), _untrained()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocab_size,
            show_progress=False,
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),  # all 256 bytes: nothing is ever unknown
        )
        model.train_from_iterator(_lines(text), trainer)
        return cls(model.to_str())

    def encode(self, text: str | bytes) -> list[int]:
        return self.encode_array(_as_bytes(text)).tolist()

    def encode_array(self, text: bytes) -> np.ndarray:
        """(n,) int32. Line by line: one encoding of a long text would take far more memory than the text."""
        lines = _lines(text)
        parts = (self._model.encode_batch_fast(lines[i : i + 4096]) for i in range(0, len(lines), 4096))
        return np.concatenate(
            [np.empty(0, np.int32), *(np.array(line.ids, np.int32) for part in parts for line in part)]
        )

    def decode(self, ids: Iterable[int]) -> str:
        """What is not UTF-8 becomes U+FFFD."""
        return self._model.decode([int(i) for i in ids])

    def byte_lengths(self) -> np.ndarray:
        """(V,) bytes that a token stands for: each character of a token's spelling is one byte."""
        return np.array([len(self.piece(i)) for i in range(self.vocab_size)], dtype=np.int64)

    def piece(self, token: int) -> str:
        return self._model.id_to_token(token)

    def state(self) -> dict[str, Any]:
        return {"name": self.name, "model": self._model.to_str()}


def differ(there: Tokenizer, here: Tokenizer) -> str:
    """How two tokenizers differ in what their ids stand for; '' where text becomes the same ids.

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


def make_tokenizer(name: str, train_text: bytes, vocab_size: int) -> Tokenizer:
    """``train_text`` must be the training split alone."""
    return ByteTokenizer() if name == "bytes" else BPETokenizer.train(train_text, vocab_size)


def tokenizer_from_state(state: Any) -> Tokenizer:
    """The inverse of ``state()``.

    Raises:
        RequestError: an unknown or damaged state, one of another kind of BPE than is made here, or `tokenizers` is missing.
    """
    name = state.get("name") if isinstance(state, dict) else None
    if name == "bytes":
        return ByteTokenizer()
    if name != "bpe":
        raise RequestError(unknown("tokenizer", shortened(str(name), 80), TOKENIZERS))
    _library()
    try:
        if not (wrong := _unlike_ours(json.loads(state["model"]))):  # what is odd would make the library panic
            tokenizer = BPETokenizer(state["model"])
            wrong = _unlike_ours(json.loads(tokenizer.state()["model"]), whole=True)
    except Exception as error:  # the library raises plain Exception for damaged JSON
        raise RequestError(f"the tokenizer's state is damaged: {one_line(error)}") from error
    if wrong:
        raise RequestError("the tokenizer's state is damaged: it is no byte-level BPE as it is made here", wrong)
    return tokenizer


def _unlike_ours(model: Any, whole: bool = False) -> list[str]:
    """What may make it lose text, draw at random, or leave ids without a piece: only vocabulary and merges may differ.

    Args:
        whole: as the library writes it today; another version may have left keys out.
    """
    ours = json.loads(_untrained().to_str())
    theirs = model.get("model") if isinstance(model, dict) else None
    if not isinstance(theirs, dict):
        return ["it holds no model"]
    found = []
    for held, mine, path in ((model, ours, ""), (theirs, ours.pop("model"), "model.")):
        for key in [key for key in mine if key not in ("vocab", "merges", "version") and (whole or key in held)]:
            if held.get(key) != mine[key] or type(held.get(key)) is not type(mine[key]):
                found.append(f"{path}{key}: {shortened(str(held.get(key)), 80)}")
    return found or _vocabulary_faults(theirs.get("vocab"), theirs.get("merges"))


def _vocabulary_faults(vocabulary: Any, merges: Any) -> list[str]:
    if not isinstance(vocabulary, dict) or not all(type(token) is int for token in vocabulary.values()):
        return ["model.vocab: must give each piece its id"]
    found, letters = [], set(_library().pre_tokenizers.ByteLevel.alphabet())
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        found.append("model.vocab: its ids are not 0, 1, 2, …")
    if missing := letters - vocabulary.keys():
        found.append(f"model.vocab: {len(missing)} of the 256 bytes are missing")
    if strange := [piece for piece in vocabulary if not piece or set(piece) - letters]:
        found.append(f"model.vocab: {shortened(repr(strange[0]), 80)} stands for no bytes")
    pairs = merges if isinstance(merges, list) else [merges]
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in pairs]
    for n, pair in enumerate(pairs):
        texts = isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
        if not texts or not {*pair, "".join(pair)} <= vocabulary.keys():
            return [*found, f"model.merges[{n}]: {shortened(str(pair), 80)} are no two pieces that make a third"]
    return found


def _untrained() -> Any:
    library = _library()
    model = library.Tokenizer(library.models.BPE())
    model.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = library.decoders.ByteLevel()
    return model


def _library() -> Any:
    if not installed("tokenizers"):
        raise RequestError("data.tokenizer=bpe needs the package tokenizers: pip install 'attnzoo[bpe]'")
    import tokenizers
    import tokenizers.decoders
    import tokenizers.models
    import tokenizers.pre_tokenizers
    import tokenizers.trainers

    return tokenizers


def _as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _lines(text: bytes) -> Sequence[str]:
    return text.decode().splitlines(keepends=True)
