"""Periodic recall: repeat what was seen once, at a distance that differs from row to row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from attnzoo.data.config import DataConfig
from attnzoo.shapes import IGNORE
from attnzoo.tasks.base import Batch, generator, in_batches
from attnzoo.tasks.config import TaskConfig


class RecallTask:
    """Each row repeats its own random period of T/8 to T/2 symbols, drawn uniformly out of ``n_symbols``::

        row      c a f b | c a f b c a f b c ...          period 4
        scored             . a f b c a f b c ...

    The symbol that opens the second period is not scored: nothing before it tells that the first has ended. Every
    scored symbol stands a period back, so a model that sees less than that stays at chance, 1/n_symbols.
    """

    name = "recall"
    bytes_per_token = None
    tokenizer = None

    def __init__(self, cfg: TaskConfig, seed: int) -> None:
        self.n_tokens, self.vocab_size, self.seed = cfg.n_tokens, cfg.n_symbols, seed
        self.validation_rows = cfg.validation_rows
        self.chance = 1.0 / cfg.n_symbols
        self.periods = (cfg.n_tokens // 8, cfg.n_tokens // 2)
        self.provenance: dict[str, Any] = {
            "source": "synthetic",
            "periods": list(self.periods),
            "n_symbols": cfg.n_symbols,
        }

    @staticmethod
    def problems(cfg: TaskConfig, data: DataConfig) -> list[str]:
        found = []
        if cfg.n_tokens < 8:
            found.append(
                f"task.n_tokens={cfg.n_tokens}: recall needs at least 8, its shortest period is an eighth of it"
            )
        if cfg.n_symbols < 2:
            found.append(f"task.n_symbols={cfg.n_symbols}: must be at least 2")
        if cfg.validation_rows < 1:
            found.append(f"task.validation_rows={cfg.validation_rows}: must be at least 1")
        return found

    @classmethod
    def build(cls, cfg: TaskConfig, data: DataConfig, seed: int) -> RecallTask:
        return cls(cfg, seed)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        return Batch(*self._rows(generator("recall/train", self.seed, step), batch_size))

    def validation_batches(self, batch_size: int) -> Iterator[Batch]:
        """Rows of a stream that no training seed draws from."""
        return in_batches(*self._rows(generator("recall/validation", 0, 0), self.validation_rows), batch_size)

    def _rows(self, random: np.random.Generator, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        shortest, longest = self.periods
        period = random.integers(shortest, longest, size=(n, 1), endpoint=True)
        symbols = random.integers(0, self.vocab_size, size=(n, longest))
        position = np.arange(self.n_tokens + 1)
        rows = torch.from_numpy(np.take_along_axis(symbols, position % period, axis=1))
        scored = torch.from_numpy(position[1:] > period)
        return rows[:, :-1].contiguous(), rows[:, 1:].masked_fill(~scored, IGNORE)
