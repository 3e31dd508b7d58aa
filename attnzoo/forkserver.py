"""``python -m attnzoo.forkserver FD MODULE…``: load the modules once, then fork a process for each request on socket FD.

The first message names what else is to be loaded; every other one is a request, and comes with five file descriptors: the
line on which its end is told (and signals for it come), the socket to ask for more, its stdin, stdout and stderr. See
`attnzoo.processes`, which starts this.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import logging
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
import weakref
from contextlib import suppress
from typing import Any, NoReturn

from attnzoo import processes
from attnzoo.lazy import uncollected

LARGEST = 2**17  # bytes of a request


def main(fd: str, *modules: str) -> None:
    """Serve until nobody holds the other end; in a forked process, do what was asked and end like any program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who asked; they stop their processes
    server = socket.socket(fileno=int(fd))
    server.set_inheritable(False)
    with uncollected():
        for module in modules:
            importlib.import_module(module)
        if not (more := server.recv(LARGEST)):
            return  # nothing is to be run after all
        for module in json.loads(more):
            importlib.import_module(module)
    unsafe = why_not_fork()
    server.send((unsafe or processes.READY).encode())
    if not unsafe:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # what was printed while loading would be said again by each child
        gc.collect()
        gc.freeze()  # or every collection of a child would touch, and so copy, all pages
        request = serve(server)
        end(work(request) if request else 0)


def why_not_fork() -> str:
    """Why a fork of this process would not be whole; '' where it is: threads do not survive, nor does a CUDA context."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return "with CUDA every process loads for itself"
    threads = max(threading.active_count(), len(os.listdir("/proc/self/task")))
    return f"loading started {threads - 1} threads" if threads > 1 else ""


def serve(server: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. Returns in each child with its request, and with None once all who could ask are gone."""
    children: set[Child] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if child := key.data:
                    if child in children and child.ended():
                        children.remove(child)
                        child.close(selector)
                    continue
                asked, fds, *_ = socket.recv_fds(server, LARGEST, 5, socket.MSG_CMSG_CLOEXEC)
                if not asked:
                    return None
                if not (pid := os.fork()):
                    for sibling in children:
                        sibling.close()
                    server.close()
                    return _become(json.loads(asked), *fds)
                line, *rest = fds
                for fd in rest:
                    os.close(fd)
                children.add(Child(pid, line, selector))


class Child:
    """A forked process and the line to the one who asked for it, whose end is the child's end too."""

    def __init__(self, pid: int, line: int, selector: selectors.BaseSelector) -> None:
        self.pid, self.end, self.line = pid, os.pidfd_open(pid), socket.socket(fileno=line)
        self.heard, self.selector = True, selector
        selector.register(self.end, selectors.EVENT_READ, self)
        selector.register(self.line, selectors.EVENT_READ, self)

    def ended(self) -> bool:
        """Tell of its end, or pass on a signal. It is reaped nowhere else, so that the signal finds no stranger."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            with suppress(OSError):  # nobody waits for it any more
                self.line.send(str(os.waitstatus_to_exitcode(status)).encode())
            return True
        with suppress(BlockingIOError):
            asked = self.line.recv(16, socket.MSG_DONTWAIT)
            os.kill(self.pid, int(asked) if asked else signal.SIGKILL)
            if not asked:  # at its end the line stays readable
                self.selector.unregister(self.line)
                self.heard = False
        return False

    def close(self, selector: selectors.BaseSelector | None = None) -> None:
        """Forget it. A child that forgets a sibling leaves the selector alone, which it shares with the server."""
        if selector is not None:
            selector.unregister(self.end)
            if self.heard:
                selector.unregister(self.line)
        os.close(self.end)
        self.line.close()


def _become(request: dict[str, Any], line: int, server: int, *files: int) -> dict[str, Any]:
    """In a child: its own output, signals, threads, and a way to ask for processes itself."""
    os.close(line)
    processes._server = socket.socket(fileno=server)
    for place, fd in enumerate(files):  # stdin, stdout, stderr
        os.dup2(fd, place)
        os.close(fd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _leave_to_the_server()
    os.environ["ATTNZOO_PARENT"] = str(os.getppid())
    os.environ.update(request["environment"])
    if (threads := request["threads"]) is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(threads)
    return request


def _leave_to_the_server() -> None:
    """What was made before the fork (W&B makes a folder, and removes it twice over) goes when the server ends."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.detach()
    atexit._clear()
    atexit.register(logging.shutdown)
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]  # so that a new one is


def work(request: dict[str, Any]) -> int:
    """``python -m MODULE ARGUMENT…`` in this process; its exit status."""
    try:
        module = importlib.import_module(request["module"])
        sys.argv = [str(module.__file__), *request["arguments"]]
        return module.main(*request["arguments"]) or 0
    except SystemExit as wanted:
        if wanted.code is None or isinstance(wanted.code, int):
            return wanted.code or 0
        print(wanted.code, file=sys.stderr)
    except BaseException:  # as the interpreter would: said on standard error
        traceback.print_exc()
    return 1


def end(status: int) -> NoReturn:
    """End as the interpreter does, but leave what was loaded in place: to take it apart copies its pages, for 0.4 s."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
