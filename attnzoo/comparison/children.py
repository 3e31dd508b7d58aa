"""Processes of a comparison: their logs, their time limit, and what is known of one that ended badly. No torch here."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from attnzoo import processes
from attnzoo.errors import shortened
from attnzoo.training import stopping
from attnzoo.training.log import STARTED_AGAIN

GRACE_SECONDS = 20.0
"""What an interrupted process has to write its checkpoint and its record."""
STEP_SECONDS = stopping.GRACE_SECONDS + 1.0
"""Of them, what it has to end the step it is in."""

_FRAME = re.compile(r'^\s*File "([^"\n]+)", line (\d+),? in (.+?)$', re.MULTILINE)
_ERROR = re.compile(
    r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)|[a-z_]\w*(?:\.\w+)+)\b(?=:|$)", re.MULTILINE
)
_STACK = "(most recent call first):"


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Args:
        status: its exit status, negative for a signal.
        seconds: that it took.
        log: where its output is; ``said`` the end of what this start of it put there.
        limit: the seconds after which it was stopped; None where it ended by itself.
    """

    status: int
    seconds: float
    log: Path
    said: str = ""
    limit: float | None = None

    @property
    def why(self) -> str:
        """One line: the time limit, the signal, or the last line it said."""
        if self.limit is not None:
            forced = "; it did not heed the interruption and was killed" if self.status == -signal.SIGKILL else ""
            return f"stopped after its time_limit of {self.limit:g} s{forced} ({self.log} says where it was)"
        if self.status == -signal.SIGKILL:
            return "killed (SIGKILL): on Linux most often the answer to a machine out of memory"
        if self.status < 0:
            return f"ended by {signal.Signals(-self.status).name} (see {self.log})"
        lines = [line.strip() for line in self.said.splitlines() if line.strip()]
        return f"exit status {self.status}: {shortened(lines[-1]) if lines else 'it said nothing'} (see {self.log})"

    def error(self) -> dict[str, str | None]:
        """The record's ``error``: type and innermost frame, as far as the log tells, and where the log is."""
        return {
            "type": self._type(),
            "frame": innermost_frame(self.said, asked=self.limit is not None),
            "log": self.log.name,
        }

    def _type(self) -> str:
        if self.limit is not None:
            return "TimeLimit"
        if self.status < 0:
            return signal.Signals(-self.status).name
        named = _ERROR.findall(self.said)
        return named[-1] if named else f"exit status {self.status}"


def innermost_frame(said: str, *, asked: bool = False) -> str | None:
    """'model.py:12 in forward' of the last traceback, or of the stack of a crash, in what a process said.

    Args:
        asked: the process was asked for its stacks, by a signal that any of its threads may have taken: the main thread's, which
            is the last, is meant.

    >>> innermost_frame('  File "/a/b.py", line 3, in outer\\n  File "/a/c.py", line 7, in inner\\nValueError: no')
    'c.py:7 in inner'
    """
    if _STACK in said:  # faulthandler has the innermost first, and the thread that took the signal is the current one
        _, current, stack = said.rpartition("Current thread")
        frames = _FRAME.findall(stack if current and not asked else said.rpartition(_STACK)[2])[:1]
    else:
        frames = _FRAME.findall(said)[-1:]
    return next((f"{Path(file).name}:{line} in {name}" for file, line, name in frames), None)


class Children:
    """The processes that are running, so that a stop reaches all of them."""

    def __init__(self) -> None:
        self.running: set[processes.Process] = set()
        self.stopped = False

    def call(
        self,
        module: str,
        arguments: Sequence[str],
        log: Path,
        *,
        given: str = "",
        threads: int | None = None,
        environment: Mapping[str, str] | None = None,
        limit: float | None = None,
    ) -> Ended:
        """Run a module's ``main`` to its end, its output added to ``log``.

        Args:
            given: what it reads on standard input.
            threads, environment: see `processes.start`.
            limit: seconds; after them it is asked where it is, interrupted and, if it does not end, killed.
        """
        started = time.monotonic()
        with open(log, "ab") as out:
            if out.tell():
                out.write(f"\n{STARTED_AGAIN} {datetime.now(UTC).isoformat(timespec='seconds')} ---\n".encode())
                out.flush()
            since = out.tell()
            child = processes.start(
                module, arguments, out=out, err=out, threads=threads, given=given, environment=environment
            )
        self.running.add(child)
        if self.stopped:  # while it was being started
            child.send_signal(signal.SIGINT)
        late = None
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            late = limit
            if processes.STACKS is not None:
                child.send_signal(processes.STACKS)
                time.sleep(
                    0.2
                )  # a thread with a signal to come is passed over, and the next must reach the main thread
            status = end(child)
        finally:
            self.running.discard(child)
        with open(log, "rb") as written:
            return Ended(status, time.monotonic() - started, log, processes.tail(written, since=since), late)

    def stop(self) -> None:
        """Interrupt every child, and kill those that do not end in time."""
        self.stopped = True
        running = list(self.running)
        for child in running:
            child.send_signal(signal.SIGINT)
        until = time.monotonic() + GRACE_SECONDS
        for child in running:
            end(child, asked=True, grace=until - time.monotonic())


def end(child: processes.Process, *, asked: bool = False, grace: float | None = None) -> int:
    """Interrupt a process, give it time to write what it has, then kill it; its exit status. One that hangs within a step is
    interrupted there too, once it has had time to end the step (`attnzoo.training.stopping`)."""
    grace = max(GRACE_SECONDS if grace is None else grace, 0.0)
    if not asked:
        child.send_signal(signal.SIGINT)
    step = min(STEP_SECONDS, grace / 2)
    try:
        return child.wait(step)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGINT)
    try:
        return child.wait(grace - step)
    except subprocess.TimeoutExpired:
        print(f"a process did not heed the interruption within {GRACE_SECONDS:g} s and is killed", file=sys.stderr)
        child.kill()
        return child.wait()


def call_alone(module: str, arguments: Sequence[str], log: Path, *, given: str = "", limit: float) -> Ended:
    """`Children.call` of one process, which Ctrl-C ends too."""
    children = Children()
    try:
        return children.call(module, arguments, log, given=given, limit=limit)
    except KeyboardInterrupt:
        children.stop()
        raise
