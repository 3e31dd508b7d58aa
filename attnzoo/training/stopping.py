"""Ctrl-C and SIGTERM while a run lasts: between two steps while it trains, at once elsewhere, never within a write."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attnzoo.errors import Stopped

NAMES: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
GRACE_SECONDS = 5.0
"""How long a stop may wait for the end of a step before the next signal breaks it off. A terminal and a comparison may
both send one for a single key."""
OURS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""The handlers that are replaced. One that a surrounding program has set stays, as does a signal that is ignored."""


class Stopping:
    """What has been asked for, and what may be done about it now."""

    def __init__(self) -> None:
        self.signum: int | None = None  # of the first signal
        self.since = 0.0
        self.waits = self.shielded = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Signals come here while the block runs; in another thread than the main one nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {signum: signal.getsignal(signum) for signum in OURS}
        self.listen()
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def listen(self) -> None:
        """Take the signals that nobody else has taken; from Lightning, which wraps handlers of its own around ours, back."""
        if threading.current_thread() is threading.main_thread():
            for signum, default in OURS.items():
                there = signal.getsignal(signum)
                if there == default or self.handle in getattr(there, "signal_handlers", ()):
                    signal.signal(signum, self.handle)

    def handle(self, signum: int, frame: Any) -> None:
        """Remember a first signal; end the work where it may be ended."""
        now = time.monotonic()
        first = self.signum is None
        if first:
            self.signum, self.since = signum, now
        if self.shielded or (self.waits and first) or (not first and now - self.since < GRACE_SECONDS):
            return
        self.check()

    def check(self) -> None:
        """Where the work may end.

        Raises:
            Stopped: it has been asked to.
        """
        if self.signum is not None:
            raise Stopped(self.signum, f"stopped by {NAMES.get(self.signum, str(self.signum))}")

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """A stop within the block waits until the block looks (`check`, or ``signum``)."""
        self.waits = True
        try:
            yield
        finally:
            self.waits = False

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Nothing ends the block: it writes."""
        before, self.shielded = self.shielded, True
        try:
            yield
        finally:
            self.shielded = before
