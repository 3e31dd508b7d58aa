"""The clock by which throughput is logged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds of the wall clock, but for what happens within `paused`."""

    def __init__(self) -> None:
        self.since = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.perf_counter()
        seconds, self.since = now - self.since, now
        return seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What takes place here counts in no lap. On a GPU, wait for it first: what it has still to do is training."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.since += time.perf_counter() - start
