"""Running cells, each in a process of its own: peak memory, caches and crashes stay its own. No torch here."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from attnzoo import processes
from attnzoo.comparison.plan import Cell
from attnzoo.files import write_text_atomic
from attnzoo.measure.record import Record
from attnzoo.training.config import to_dict, to_yaml

LOG = "log.txt"
Say = Callable[[Cell, Record, float], None]


def run_cells(cells: Sequence[Cell], jobs: int, say: Say) -> None:
    """Run each cell to its record, ``jobs`` at a time; ``say`` hears of each as it ends, with the seconds its process took.

    Raises:
        KeyboardInterrupt: after the running cells were stopped and had written their records.
    """
    children = Children()
    threads = max((os.cpu_count() or 1) // jobs, 1) if jobs > 1 else None
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        waiting: dict[Future[tuple[Record, float]], Cell] = {
            pool.submit(_run, cell, children, threads): cell for cell in cells
        }
        try:
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    say(waiting.pop(future), *future.result())
        except BaseException:
            for future in waiting:
                future.cancel()
            children.stop()
            raise


class Children:
    """The processes that are running, so that a stop reaches all of them."""

    def __init__(self) -> None:
        self.running: set[processes.Process] = set()
        self.stopped = False

    def call(self, module: str, arguments: Sequence[str], log: Path, threads: int | None = None) -> int:
        """Run a module's ``main`` to its end, its output into ``log``; returns its exit status."""
        with open(log, "wb") as out:
            child = processes.start(module, arguments, out=out, err=out, threads=threads)
        self.running.add(child)
        try:
            return child.wait()
        finally:
            self.running.discard(child)

    def stop(self, grace_seconds: float = 20.0) -> None:
        """Interrupt every child, and end those that do not stop in time."""
        self.stopped = True
        for child in list(self.running):
            child.send_signal(signal.SIGINT)
        for child in list(self.running):
            try:
                child.wait(grace_seconds)
            except subprocess.TimeoutExpired:
                child.kill()


def _run(cell: Cell, children: Children, threads: int | None) -> tuple[Record, float]:
    """One cell, and its seconds; a process that left no record gets a *failed* one with the reason."""
    started = time.monotonic()
    folder = cell.folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "record.json"
    path.unlink(missing_ok=True)
    write_text_atomic(folder / "config.yaml", to_yaml(cell.cfg))
    status = children.call("attnzoo.training.__main__", [str(folder)], folder / LOG, threads)
    seconds = time.monotonic() - started
    if path.is_file():
        return Record.load(path), seconds
    record = Record(
        status="interrupted" if children.stopped else "failed",
        reasons=[_why(status, folder / LOG)],
        attention=cell.cfg.attention.name,
        options=cell.cfg.attention.options,
        seed=cell.cfg.seed,
        config_hash=cell.hash,
        positions=to_dict(cell.cfg)["positions"]["name"],
    )
    record.save(path)
    return record, seconds


def _why(status: int, log: Path) -> str:
    if status == -signal.SIGKILL:
        return "killed (SIGKILL): on Linux most often the answer to a machine out of memory"
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    with open(log, "rb") as said:
        return f"exit status {status}: {processes.last_line(said) or 'it said nothing'} (see {log})"
