"""What every task gives: batches that depend on (seed, step) alone, and a fixed validation set.

No torch is imported here, so that a task's file can be asked for its options without it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from attnzoo import options
from attnzoo.components import Component
from attnzoo.errors import RequestError
from attnzoo.options import Options

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnzoo.data.config import DataConfig
    from attnzoo.tokenizers.base import Tokenizer


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


class Task(Component):
    """What a model is trained on and scored by. A synthetic one writes `rows`, ``vocab_size`` and ``chance``.

    Given to it: ``options``, ``n_tokens`` (T), ``seed``, ``n_validation_rows``.

    Attributes:
        vocab_size: V.
        chance: accuracy of guessing, or None where accuracy is not the score.
        bytes_per_token: bytes of text that a scored validation token stands for, or None without text. Bits per byte =
            nats a token / ln 2 / bytes_per_token.
        tokenizer: None without text.
        least_tokens: the smallest T that it can be posed at.
        reads_text: whether it reads the text of ``data``.
    """

    kind: ClassVar[str] = "task"
    least_tokens: ClassVar[int] = 1
    reads_text: ClassVar[bool] = False
    vocab_size: int
    chance: float | None = None
    bytes_per_token: float | None = None
    tokenizer: Tokenizer | None = None

    def __init__(self, options: Options, *, n_tokens: int, seed: int = 0, n_validation_rows: int = 64) -> None:
        self.options, self.n_tokens, self.seed, self.n_validation_rows = options, n_tokens, seed, n_validation_rows

    @property
    def provenance(self) -> dict[str, Any]:
        """What it was made from, for the record."""
        return {"source": "synthetic", **options.values(self.options, "task")}

    def prepare(self, data: DataConfig) -> None:
        """Read what it needs before the first batch; a task that reads text does.

        Raises:
            RequestError: it cannot be had, with every reason.
        """

    def rows(self, random: np.random.Generator, n: int) -> tuple[Any, Any]:
        """(tokens, targets), (n, T) int64 each, arrays or tensors, drawn from ``random`` alone."""
        raise NotImplementedError(f"{type(self).__name__} draws no rows")

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """A pure function of (seed, step): what ran before does not matter, so that resuming is exact."""
        return self._drawn(generator(f"{self.name}/train", self.seed, step), batch_size)

    def validation_batches(self, batch_size: int) -> Iterator[Batch]:
        """The same rows at every call, for every seed and batch size, of a stream that no training seed draws from; the last
        batch may be smaller."""
        drawn = self._drawn(generator(f"{self.name}/validation", 0, 0), self.n_validation_rows)
        return in_batches(drawn.tokens, drawn.targets, batch_size)

    def _drawn(self, random: np.random.Generator, n: int) -> Batch:
        import torch

        tokens, targets = (torch.as_tensor(each).long() for each in self.rows(random, n))
        if not tokens.shape == targets.shape == (n, self.n_tokens):
            raise RequestError(
                f"the task {self.name} drew tokens {tuple(tokens.shape)} and targets {tuple(targets.shape)}: both must be "
                f"({n}, {self.n_tokens})"
            )
        return Batch(tokens, targets)


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
