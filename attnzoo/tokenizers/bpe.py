"""Byte-level BPE, trained on the training split."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnzoo import components
from attnzoo.arguments import demand
from attnzoo.components import register
from attnzoo.errors import RequestError, shortened
from attnzoo.options import Options
from attnzoo.tokenizers.base import Tokenizer


@dataclass(frozen=True)
class BPEOptions(Options):
    """bpe_vocab: V, the 256 bytes and the merges; a short text gives fewer."""

    bpe_vocab: int = 2048

    def __post_init__(self) -> None:
        if self.bpe_vocab < 257:
            raise RequestError(f"bpe_vocab={self.bpe_vocab}: must be at least 257, the 256 bytes and one merge")


@register("bpe")
class BPETokenizer(Tokenizer):
    """Byte-level BPE (Sennrich et al., arXiv:1508.07909, over bytes as in GPT-2). No token spans a line end.

    Args:
        model: the JSON of a `tokenizers.Tokenizer`.
    """

    source = "https://arxiv.org/abs/1508.07909"
    Options = BPEOptions
    needs = {"tokenizers": "bpe"}  # noqa: RUF012

    def __init__(self, model: str) -> None:
        self._model = _library().Tokenizer.from_str(model)
        self.vocab_size = self._model.get_vocab_size()

    @classmethod
    def fit(cls, text: bytes, options: BPEOptions) -> BPETokenizer:  # type: ignore[override]
        return cls.train(text, options.bpe_vocab)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> BPETokenizer:
        """Raises what is wrong with it: `RequestError` for one of another kind of BPE than is made here."""
        if not (wrong := _unlike_ours(json.loads(state["model"]))):  # what is odd would make the library panic
            tokenizer = cls(state["model"])
            wrong = _unlike_ours(json.loads(tokenizer.state()["model"]), whole=True)
        demand("the tokenizer's state is damaged: it is no byte-level BPE as it is made here", wrong)
        return tokenizer

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
        return super().state() | {"model": self._model.to_str()}


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
    demand("the tokenizer bpe cannot be used", components.lacking("tokenizer", "bpe", "data.tokenizer"))
    import tokenizers
    import tokenizers.decoders
    import tokenizers.models
    import tokenizers.pre_tokenizers
    import tokenizers.trainers

    return tokenizers


def _lines(text: bytes) -> Sequence[str]:
    return text.decode().splitlines(keepends=True)
