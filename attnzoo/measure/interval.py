"""The median and how sure it is. No torch here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from attnzoo.errors import RequestError


@dataclass(frozen=True)
class Interval:
    """A median with the distribution-free interval around it."""

    median: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Of the interval, relative to the median."""
        return (self.high - self.low) / self.median if self.median > 0 else math.inf


def interval_of_median(samples: Sequence[float], level: float = 0.95) -> Interval:
    """The median and its interval by order statistics: no assumption about the distribution, outliers kept.

    It runs from the k-th smallest to the k-th largest sample, with the largest k for which the binomial probability
    that the median lies outside is at most 1 - level. With fewer than 6 samples no k reaches 95 %: it is the whole
    range.

    >>> interval_of_median([3, 1, 2, 9, 5, 4, 6])
    Interval(median=4, low=1, high=9)
    """
    if not samples:
        raise RequestError("a median needs at least one sample")
    ordered, n = sorted(samples), len(samples)
    k, below = 0, _probability(n, 0)  # below: P(at most k samples lie under the median)
    while k + 1 < n / 2 and 2 * (below + _probability(n, k + 1)) <= 1 - level:
        k += 1
        below += _probability(n, k)
    return Interval(median(ordered), ordered[k], ordered[n - 1 - k])


def _probability(n: int, k: int) -> float:
    """Of k heads in n throws of a fair coin; by logarithms, since 2^-n is no float from n = 1075 on."""
    return math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2))
