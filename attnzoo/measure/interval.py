"""The median and how sure it is. No torch here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median, stdev

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


def interval_of_mean(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """The mean and Student's interval around it: (mean, low, high). One value has no interval: it is infinite.

    >>> interval_of_mean([1.0, 2.0, 3.0])
    (2.0, -0.484..., 4.484...)
    """
    if not values:
        raise RequestError("a mean needs at least one value")
    mean, n = fmean(values), len(values)
    if n == 1:
        return mean, -math.inf, math.inf
    half = student_quantile(n - 1, level) * stdev(values) / math.sqrt(n)
    return mean, mean - half, mean + half


@cache
def student_quantile(freedom: int, level: float = 0.95) -> float:
    """The t that Student's distribution of ``freedom`` degrees of freedom stays within, on both sides, with probability
    ``level``.

    The probability is a finite sum for whole degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4), solved by bisection.

    >>> round(student_quantile(2), 3)
    4.303
    """
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _within(freedom, middle) < level else (low, middle)
    return math.sqrt(freedom) * math.tan(middle)


def _within(freedom: int, angle: float) -> float:
    """P(|t| < tan(angle) · √freedom)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, freedom, 2):  # cos^(k-1) with its coefficient
        total += term
        term *= cosine**2 * k / (k + 1)
    return (angle + sine * total) * 2 / math.pi if odd else sine * total
