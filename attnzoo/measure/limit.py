"""A time limit for everything, and its shares. No torch here."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limit:
    """When a piece of work must be done.

    Args:
        asked: seconds, of the limit for everything.
        end: on the clock of `time.perf_counter`.
        parts: of how many equal parts of the work this is the first.
    """

    asked: float = math.inf
    end: float = math.inf
    parts: int = 1
    start: float = field(default_factory=lambda: time.perf_counter())

    @classmethod
    def of(cls, seconds: float | None) -> Limit:
        """Running from now on; none at all for None."""
        return cls() if seconds is None else cls(seconds, time.perf_counter() + seconds)

    def among(self, parts: int) -> Limit:
        """The same limit for several equal parts."""
        return Limit(self.asked, self.end, parts, self.start)

    def share(self, parts: int | None = None) -> Limit:
        """Of the time that is left what one of ``parts`` may take."""
        return Limit(self.asked, time.perf_counter() + self.left / (parts or self.parts))

    @property
    def left(self) -> float:
        """Seconds, 0 when it is over."""
        return max(self.end - time.perf_counter(), 0.0)

    @property
    def seconds(self) -> float:
        """From its start to its end."""
        return self.end - self.start

    def over_before(self, what: str) -> str:
        """'its share of the time limit, 12 of 60 s, was over before its turn'."""
        if not 0 < self.seconds < self.asked * 0.999:
            return f"the time limit of {self.asked:g} s was over before {what}"
        return f"its share of the time limit, {self.seconds:.3g} of {self.asked:g} s, was over before {what}"
