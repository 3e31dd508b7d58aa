"""Components of other packages: which names they may have, and their import, whatever their code does. No torch here."""

from __future__ import annotations

import importlib.metadata
import logging
import re
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from types import FrameType
from typing import Any

from attnzoo.arguments import text
from attnzoo.terminal import one_line, printable, stdout_apart

SECONDS = 30.0
"""An import that takes longer is given up."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", re.ASCII)
_TAKEN = ("null", "none", "true", "false", "nan", "inf", "peers", "all", "auto")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BrokenPlugin:
    """A plugin that cannot be used: its name, the one-line error, and the traceback."""

    name: str
    distribution: str
    error: str
    trace: str


class Unusable(Exception):
    """A plugin's code failed; the message is one printable line, ``trace`` its traceback."""

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message)
        self.trace = trace


def name_faults(name: Any) -> list[str]:
    """Why a component cannot be called so: its name stands in commands, in folder names and in hybrids (3xgla+sdpa)."""
    if wrong := text("name", name):
        return wrong
    if not _NAME.fullmatch(name):
        shown = printable(name if len(name) <= 80 else name[:80] + "…")
        return [f"name={shown!r}: must be a letter or _, then letters, digits, _ or -, at most 64 in all"]
    return [f"name={name!r}: this word has a meaning of its own in commands"] if name.lower() in _TAKEN else []


@cache
def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """What the installed packages offer in a group, whether or not it can be used. It is read from their metadata."""
    return tuple(importlib.metadata.entry_points(group=group))


def load_point(point: EntryPoint) -> Any:
    """What an entry point names. Its prints go to stderr; ``os._exit`` and a crash in C end the program, and --debug then
    says whose import it was.

    Raises:
        Unusable: the import raised anything, SystemExit and KeyboardInterrupt included, or it took too long.
        KeyboardInterrupt: a person pressed Ctrl-C meanwhile.
    """
    log.info("importing plugin %s = %s", printable(point.name), printable(point.value))
    pressed: list[int] = []
    try:
        with stdout_apart(), _watched(pressed):
            return point.load()
    except BaseException as error:  # also what is meant to end a program: the others go on
        if pressed:
            raise KeyboardInterrupt(
                f"stopped from the keyboard while plugin {printable(point.name)} was imported"
            ) from error
        raise Unusable(one_line(error), traceback.format_exc()) from error


@contextmanager
def _watched(pressed: list[int]) -> Iterator[None]:
    """Tell a Ctrl-C from a KeyboardInterrupt that the code raises itself, and give up after `SECONDS`. Signals reach the main
    thread alone; elsewhere, and where somebody else has set an alarm, nothing is watched."""
    alarm = getattr(signal, "SIGALRM", None)
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def press(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"its import took more than {SECONDS:g} s")

    theirs = signal.getsignal(signal.SIGINT)
    timed = alarm is not None and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    if theirs is signal.default_int_handler:
        signal.signal(signal.SIGINT, press)
    if timed:
        before = signal.signal(signal.SIGALRM, give_up)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        if theirs is signal.default_int_handler:
            signal.signal(signal.SIGINT, theirs)
