"""Multi-query associative recall: pairs of keys and values, then the keys again, at power-law distances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnzoo.components import register
from attnzoo.errors import RequestError
from attnzoo.options import Options
from attnzoo.shapes import IGNORE
from attnzoo.tasks.base import Task


@dataclass(frozen=True)
class MQAROptions(Options):
    """What is recalled, and when.

    Args:
        n_pairs: key-value pairs a row.
        n_symbols: V: keys are 1 to V/2 - 1, values V/2 to V - 1.
        power_a: a of the distances: a query stands g places after the pairs with probability in proportion to (g + 1)^(a - 1),
            a place being two tokens; 1 is uniform, a small one keeps queries near.
        n_passes: how often the pairs are shown before the queries.
        random_non_queries: places without a key hold random symbols; false leaves the symbol 0 there.
    """

    n_pairs: int = 8
    n_symbols: int = 8192
    power_a: float = 0.01
    n_passes: int = 1
    random_non_queries: bool = True

    def __post_init__(self) -> None:
        counts = {"n_pairs": self.n_pairs, "n_passes": self.n_passes}
        faults = [f"{name}={count}: must be at least 1" for name, count in counts.items() if count < 1]
        if not self.power_a > 0:
            faults.append(f"power_a={self.power_a}: must be more than 0")
        if self.n_symbols // 2 - 1 < self.n_pairs:
            least = 2 * (self.n_pairs + 1)
            faults.append(f"n_symbols={self.n_symbols}: {self.n_pairs} different keys need at least {least}")
        if faults:
            raise RequestError("mqar cannot take these options", faults)

    def length_faults(self, n_tokens: int) -> list[str]:
        least = 2 * self.n_pairs * (self.n_passes + 1)
        faults = [] if n_tokens % 2 == 0 else [f"n_tokens={n_tokens}: mqar needs an even number"]
        if n_tokens < least:
            faults.append(f"n_tokens={n_tokens}: {self.n_pairs} pairs and their queries need at least {least}")
        return faults


@register("mqar")
class MQAR(Task):
    """Multi-query associative recall: the value of each key of the row, asked for once.

    With n_pairs = 2, V = 12, T = 16 and zeros where the symbols are random (·: not scored)::

        pairs      key val key val | queries
        tokens      2   8   4   7  | 0  0  4  0  0  0  0  0  2  0  0  0
        targets     ·   ·   ·   ·  | ·  ·  7  ·  ·  ·  ·  ·  8  ·  ·  ·

    Each key is asked for once, at an even place after the pairs. A value lies one place behind its key, so that a window sees it
    from a query no further than its width; `distances` says how far each is.
    """

    source = "arXiv:2312.04927"
    Options = MQAROptions
    options: MQAROptions

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self.options.n_symbols

    @property
    def chance(self) -> float:  # type: ignore[override]
        """Of one who knows that the answer is a value, and not which."""
        return 1 / (self.options.n_symbols - self.options.n_symbols // 2)

    def rows(self, random: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        o, half = self.options, self.options.n_symbols // 2
        keys = 1 + _different(random, n, half - 1, o.n_pairs)
        values = half + _different(random, n, o.n_symbols - half, o.n_pairs)
        pairs = np.tile(np.stack([keys, values], -1).reshape(n, -1), (1, o.n_passes))
        places = (self.n_tokens - pairs.shape[1]) // 2
        weight = np.arange(1, places + 1) ** (o.power_a - 1)
        # the order of exponential clocks is that of draws without replacement in proportion to their rates
        gaps = np.argsort(random.exponential(size=(n, places)) / weight, axis=1)[:, : o.n_pairs]
        queries = np.zeros((n, self.n_tokens - pairs.shape[1]), np.int64)
        targets = np.full((n, self.n_tokens), IGNORE)
        np.put_along_axis(queries, 2 * gaps, keys, axis=1)
        np.put_along_axis(targets, 2 * gaps + pairs.shape[1], values, axis=1)
        tokens = np.concatenate([pairs, queries], axis=1)
        if o.random_non_queries:
            tokens = np.where(tokens == 0, random.integers(0, o.n_symbols, tokens.shape), tokens)
        return tokens, targets

    def distances(self, tokens: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """(n, T): tokens from each scored query back to its value in the last pass; 0 where nothing is scored."""
        shown = 2 * self.options.n_pairs * self.options.n_passes
        far = np.zeros_like(tokens)
        for row, t in zip(*np.nonzero(targets != IGNORE), strict=True):
            far[row, t] = t - np.flatnonzero(tokens[row, :shown:2] == tokens[row, t])[-1] * 2 - 1
        return far

    def solve(self, tokens: np.ndarray) -> np.ndarray:
        """What follows the last earlier occurrence of each token among the pairs; 0 where it is no key of theirs."""
        shown = 2 * self.options.n_pairs * self.options.n_passes
        answers = np.zeros_like(tokens)
        for row, answer in zip(tokens, answers, strict=True):
            value = dict(zip(row[:shown:2], row[1:shown:2], strict=True))
            answer[:] = [value.get(token, 0) for token in row]
        return answers


def _different(random: np.random.Generator, n: int, among: int, count: int) -> np.ndarray:
    """(n, count) whole numbers below ``among``, no two of a row the same, each such row as likely as any other."""
    drawn = np.argpartition(random.random((n, among)), count - 1, axis=1)[:, :count]
    return random.permuted(drawn, axis=1)  # the partition leaves them in an order that is not uniform
