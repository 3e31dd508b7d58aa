"""Periodic recall: repeat what was seen once, at a distance that differs from row to row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnzoo.components import register
from attnzoo.errors import RequestError
from attnzoo.options import Options
from attnzoo.shapes import IGNORE
from attnzoo.tasks.base import Task


@dataclass(frozen=True)
class RecallOptions(Options):
    """n_symbols: size of the alphabet."""

    n_symbols: int = 64

    def __post_init__(self) -> None:
        if self.n_symbols < 2:
            raise RequestError(f"n_symbols={self.n_symbols}: must be at least 2")


@register("recall")
class RecallTask(Task):
    """Each row repeats its own random period of T/8 to T/2 symbols, drawn uniformly out of ``n_symbols``::

        row      c a f b | c a f b c a f b c ...          period 4
        scored             . a f b c a f b c ...

    The symbol that opens the second period is not scored: nothing before it tells that the first has ended. Every
    scored symbol stands a period back, so a model that sees less than that stays at chance, 1/n_symbols.
    """

    source = "attnzoo"
    Options = RecallOptions
    options: RecallOptions
    least_tokens = 8  # its shortest period is an eighth of them

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self.options.n_symbols

    @property
    def chance(self) -> float:  # type: ignore[override]
        return 1 / self.options.n_symbols

    @property
    def periods(self) -> tuple[int, int]:
        """The shortest and the longest."""
        return self.n_tokens // 8, self.n_tokens // 2

    @property
    def provenance(self) -> dict[str, Any]:
        return {"source": "synthetic", "periods": list(self.periods), "n_symbols": self.options.n_symbols}

    def rows(self, random: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        shortest, longest = self.periods
        period = random.integers(shortest, longest, size=(n, 1), endpoint=True)
        symbols = random.integers(0, self.vocab_size, size=(n, longest))
        position = np.arange(self.n_tokens + 1)
        drawn = np.take_along_axis(symbols, position % period, axis=1)
        return drawn[:, :-1], np.where(position[1:] > period, drawn[:, 1:], IGNORE)

    def solve(self, tokens: np.ndarray) -> np.ndarray:
        """What a model that has understood the task answers at every position, from (n, T) tokens alone: the shortest period that
        fits what has been seen, guessed again at each."""
        answers = np.zeros_like(tokens)
        shortest, longest = self.periods
        for row, answer in zip(tokens, answers, strict=True):
            for t in range(self.n_tokens):
                fits = (
                    p for p in range(shortest, longest + 1) if p <= t and (row[p : t + 1] == row[: t + 1 - p]).all()
                )
                answer[t] = row[t + 1 - period] if (period := next(fits, None)) else 0
        return answers
