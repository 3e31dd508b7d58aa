"""Python processes for pieces of work: fresh ones, or forked off one that has loaded the heavy packages. No torch here.

Loading torch, Lightning and W&B costs seconds of CPU time, which a comparison would pay for every cell. `preloaded` starts
one process that loads them and then only forks (`attnzoo.forkserver`); within it `start` asks that process, outside it
starts a fresh one. Both run ``main(*arguments)`` of a module in a process of its own.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol

import attnzoo
from attnzoo.errors import AttnzooError

READY = "ready"
GRACE_SECONDS = 10.0
STACKS = getattr(signal, "SIGUSR1", None)
"""The signal at which a process that called `show_stacks` tells where it is; there is none on Windows."""
CAN_FORK = sys.platform == "linux" and hasattr(os, "pidfd_open")
_server: socket.socket | None = None
"""Where to ask for a forked process. A process that was forked itself has it too, and may ask for more."""
_loader: Loader | None = None
"""What `preloading` has begun and nobody has taken up yet."""


class Process(Protocol):
    """What a fresh and a forked process have in common."""

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


def start(
    module: str,
    arguments: Sequence[str] = (),
    *,
    out: IO[bytes],
    err: IO[bytes],
    threads: int | None = None,
    given: str = "",
    environment: Mapping[str, str] | None = None,
) -> Process:
    """Run ``main(*arguments)`` of a module in a process of its own, which ends when the one that asked for it does.

    Args:
        out, err: files for what it prints.
        threads: CPU threads it may use, unless OMP_NUM_THREADS says so.
        environment: what it has besides this process's.
        given: what it reads on standard input, which unlike its arguments nobody else can see.
    """
    if "OMP_NUM_THREADS" in os.environ:
        threads = None
    with tempfile.TemporaryFile() as put_in:
        put_in.write(given.encode())
        put_in.seek(0)
        if _server is not None:
            request = {
                "module": module,
                "arguments": list(arguments),
                "threads": threads,
                "environment": dict(environment or {}),
            }
            return Forked(_server, request, put_in, out, err)
        limit = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        limit |= environment or {}
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stdin=put_in, stdout=out, stderr=err,
            env={**_environment(), **limit, "ATTNZOO_PARENT": str(os.getpid())},
        )  # fmt: skip


class Forked:
    """A process that the fork server started: it is the server's child, so that its end comes over a socket."""

    def __init__(self, server: socket.socket, request: dict, *files: IO[bytes]) -> None:
        self.module = request["module"]
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fds = [theirs.fileno(), server.fileno(), *(file.fileno() for file in files)]
            try:
                socket.send_fds(server, [json.dumps(request).encode()], fds)
            except OSError as error:
                raise AttnzooError(f"the process that {self.module} is forked off is gone: {error.strerror}") from error

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, negative for a signal. Several threads may wait: the answer is looked at, not taken.

        Raises:
            subprocess.TimeoutExpired: it still runs.
            AttnzooError: the server is gone, and its children with it.
        """
        poll = select.poll()
        poll.register(self.line, select.POLLIN)
        if not poll.poll(None if timeout is None else 1000 * timeout):
            raise subprocess.TimeoutExpired(self.module, timeout or 0.0)
        if not (said := self.line.recv(16, socket.MSG_PEEK)):
            raise AttnzooError(f"the process that {self.module} was forked off ended, and {self.module} with it")
        return int(said)

    def send_signal(self, sig: int) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended, which `wait` tells
            self.line.send(str(int(sig)).encode())

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Loader:
    """The process that loads modules, and from which others are then forked."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.ready, self.err = False, tempfile.TemporaryFile()  # noqa: SIM115  until `end`
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "attnzoo.forkserver", str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.err,
                # numpy's BLAS would start its threads when loaded; nothing here multiplies large numpy matrices
                env=_environment() | {"OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip

    def finish(self, modules: Sequence[str]) -> str:
        """Have it load these too, and wait until all is loaded; why nothing can be forked off it, or ''."""
        said = ""
        with suppress(ConnectionError):  # it has ended, with a reason on its standard error
            self.socket.send(json.dumps(modules).encode())
            said = self.socket.recv(4096).decode()
        self.ready = said == READY
        return "" if self.ready else said or _why_it_ended(self.child, self.err)

    def end(self) -> None:
        """It ends when nobody can ask any more; one that still loads would not notice."""
        self.socket.close()
        if not self.ready:
            self.child.kill()
        try:
            self.child.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.child.terminate()
            self.child.wait()
        self.err.close()


@contextmanager
def preloading(*modules: str) -> Iterator[None]:
    """Begin to load the modules, while the caller does something else; `preloaded` within the block takes it up."""
    global _loader
    if _server is not None or _loader is not None or not CAN_FORK:
        yield
        return
    loader = _loader = Loader(modules)
    try:
        yield
    finally:
        _loader = None
        loader.end()


@contextmanager
def preloaded(*modules: str) -> Iterator[str]:
    """Load the modules once, in a process that `start` then forks; the value says why fresh ones are used instead, or ''.

    Forking is for Linux, and safe only while a process has one thread and no CUDA; the server looks when all is loaded.
    """
    global _server, _loader
    if _server is not None or not CAN_FORK:
        yield "" if _server is not None else "this system has no pidfd"
        return
    loader, _loader = _loader or Loader(()), None
    try:
        why_not = loader.finish(modules)
        _server = None if why_not else loader.socket
        yield why_not
    finally:
        _server = None
        loader.end()


def end_with_parent() -> None:
    """End this process when its parent does: nobody would wait for it, and a next start would collide with it. What it has to
    lose it may write first, as on SIGTERM."""
    parent = os.environ.get("ATTNZOO_PARENT")
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        os._exit(1)

    # a signal is given to any thread that takes it, and one that wakes this thread would not end the main thread's sleep
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        threading.Thread(target=watch, daemon=True).start()  # it blocks what is blocked now
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment() -> dict[str, str]:
    """This process's, with the package where it is found now, unless it is installed."""
    home = Path(attnzoo.__file__).parents[1]
    if home.name == "site-packages":
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in (str(home), os.environ.get("PYTHONPATH")) if p)}


def _why_it_ended(child: subprocess.Popen, err: IO[bytes]) -> str:
    status = child.wait()
    return f"loading ended with status {status}: {last_line(err) or 'it said nothing'}"


def show_stacks() -> None:
    """Print where this process was, on standard error, when it crashes in C, and each time it gets `STACKS`."""
    faulthandler.enable()
    if STACKS is not None:
        faulthandler.register(STACKS, all_threads=True)


def tail(file: IO[bytes], most: int = 2**22, since: int = 0) -> str:
    """The end of a file, at most ``most`` bytes of it and nothing before the place ``since``."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(end - most, since, 0))
    return file.read(most).decode(errors="replace")


def last_line(file: IO[bytes]) -> str:
    """The last line that is not empty, '' where there is none."""
    lines = [line.strip() for line in tail(file).splitlines()]
    return next(filter(None, reversed(lines)), "")
