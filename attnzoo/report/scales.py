"""Scales and ticks of a plot axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


def compact(value: float) -> str:
    """1200 -> '1.2k', 3e6 -> '3M', 0.05 -> '0.05'."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def tokens(value: float) -> str:
    """A length: powers of two as the field writes them, 4096 -> '4k'."""
    return f"{int(value) // 1024}k" if value >= 1024 and value % 1024 == 0 else compact(value)


@dataclass
class Axis:
    """One axis.

    Args:
        title: with the unit.
        log: logarithmic; values must be positive.
        better: "low" or "high" marks the good end, None neither.
        ticks: where to put them; None chooses.
        text: a tick's label.
        limits: ends, further out where the data are; None takes those of the data, with a margin.
    """

    title: str
    log: bool = False
    better: str | None = None
    ticks: Sequence[float] | None = None
    text: Callable[[float], str] = compact
    limits: tuple[float, float] | None = None

    def scale(self, values: Sequence[float], start: float, end: float) -> Scale:
        """Map the values onto start … end (pixels), ticks included."""
        if self.limits:
            low, high = min(self.limits[0], *values), max(self.limits[1], *values)
        elif self.log:
            low, high = min(values), max(values)
            margin = max((high / low) ** 0.06, 1.05)
            low, high = low / margin, high * margin
        else:
            low, high = min(values), max(values)
            margin = 0.06 * (high - low) or abs(high) * 0.05 or 1.0
            low, high = low - margin, high + margin
        ticks = self.ticks or (log_ticks(low, high) if self.log else linear_ticks(low, high))
        return Scale(low, high, start, end, self.log, [tick for tick in ticks if low <= tick <= high])


@dataclass
class Scale:
    """Data low … high onto pixels start … end."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: list[float]

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def linear_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next((m for m in (1, 2, 5) if m * power >= rough * 0.9), 10)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Decades; 1, 2, 5 of each where they are few; a linear choice below one factor of three."""
    if high / low < 3:
        return linear_ticks(low, high)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for multiples in ((1,), (1, 2, 5)):
        found = [m * 10.0**p for p in powers for m in multiples if low <= m * 10.0**p <= high]
        if len(found) >= 3:
            return found[:: math.ceil(len(found) / 8)]
    return found
