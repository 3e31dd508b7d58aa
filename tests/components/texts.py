"""A corpus and a tokenizer as a researcher writes them, and wrong twins of theirs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from attnzoo import Corpus, Options, Tokenizer

calls = itertools.count()


@dataclass(frozen=True)
class SquaresOptions(Options):
    """n_lines: numbers. label: what stands before each."""

    n_lines: int = 2000
    label: str = "é"


class Squares(Corpus):
    """Square numbers, a line each."""

    source = "a test"
    Options = SquaresOptions

    def read(self):
        return "".join(f"{self.options.label} {n * n}\n" for n in range(self.options.n_lines)).encode()


class Shifting(Squares):
    """Another text at each reading."""

    def read(self):
        return f"{next(calls)}\n".encode() + super().read()


class Latin(Squares):
    """No UTF-8."""

    def read(self):
        return super().read().decode().encode("latin-1")


class Shifted(Tokenizer):
    """Bytes, each one further."""

    source = "a test"
    vocab_size = 257

    @classmethod
    def fit(cls, text, options):
        return cls()

    @classmethod
    def from_state(cls, state):
        return cls()

    def encode_array(self, text):
        return np.frombuffer(text, np.uint8).astype(np.int32) + 1

    def decode(self, ids):
        return bytes(int(i) - 1 for i in ids if i).decode(errors="replace")

    def byte_lengths(self):
        return np.array([0] + [1] * 256)


class Drops(Shifted):
    """Loses the bytes of one letter."""

    def encode_array(self, text):
        return super().encode_array(text.replace(b"q", b""))


class Miscounts(Shifted):
    """Says that each id is two bytes."""

    def byte_lengths(self):
        return 2 * super().byte_lengths()


class Forgets(Shifted):
    """Comes back from its state as another."""

    def __init__(self, by=1):
        self.by = by

    @classmethod
    def fit(cls, text, options):
        return cls(2)

    def encode_array(self, text):
        return (super().encode_array(text) + self.by) % 257

    def decode(self, ids):
        return super().decode((int(i) - self.by) % 257 for i in ids)
