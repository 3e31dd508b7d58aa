"""What every task gives: batches that depend on (seed, step) alone, and a fixed validation set."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from attnzoo.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Batch:
    """Targets are already shifted: ``targets[:, t]`` is the token after ``tokens[:, t]``. Nothing later shifts again.

    Args:
        tokens, targets: (B, T) int64; `IGNORE` where not scored.
        documents: (B, T) ids, or None.
        key_padding: (B, T) bool, True = a real token, or None.
    """

    tokens: Tensor
    targets: Tensor
    documents: Tensor | None = None
    key_padding: Tensor | None = None

    def to(self, device: str | torch.device) -> Batch:
        return Batch(*(None if x is None else x.to(device) for x in vars(self).values()))  # type: ignore[arg-type]

    def rows(self, first: int, n: int) -> Batch:
        """``n`` rows from row ``first`` on."""
        return Batch(*(None if x is None else x[first : first + n] for x in vars(self).values()))  # type: ignore[arg-type]


class Task(Protocol):
    """The interface.

    Attributes:
        vocab_size, n_tokens: V, T.
        chance: accuracy of guessing, or None where accuracy is not the score.
        bytes_per_token: bytes of text a scored validation token stands for, or None without text. Bits per byte =
            nats a token / ln 2 / bytes_per_token.
        tokenizer: None without text.
        provenance: what it was made from, for the record.
    """

    name: str
    vocab_size: int
    n_tokens: int
    chance: float | None
    bytes_per_token: float | None
    tokenizer: Tokenizer | None
    provenance: dict[str, Any]

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """A pure function of (seed, step): what ran before does not matter, so that resuming is exact."""
        ...

    def validation_batches(self, batch_size: int) -> Iterator[Batch]:
        """The same rows at every call, for every seed and batch size; the last batch may be smaller."""
        ...


def generator(stream: str, seed: int, step: int) -> np.random.Generator:
    """The random numbers of one step of a named stream, by counter (Philox; Salmon et al., SC 2011), not by history.

    The key holds (seed, stream); the top word of the counter holds the step, so no two steps overlap.
    """
    bits = np.random.Philox(
        key=np.array([seed, zlib.crc32(stream.encode())], np.uint64), counter=np.array([0, 0, 0, step], np.uint64)
    )
    return np.random.Generator(bits)


def in_batches(tokens: Tensor, targets: Tensor, batch_size: int) -> Iterator[Batch]:
    for start in range(0, len(tokens), batch_size):
        yield Batch(tokens[start : start + batch_size], targets[start : start + batch_size])
