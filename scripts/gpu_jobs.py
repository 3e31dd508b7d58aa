"""Jobs in worker processes, each with its time limit; what they return is written after every one of them.

A worker that dies or hangs costs its own job alone: it is ended and another takes its place.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from attnzoo.errors import RequestError
from attnzoo.files import read_json, write_json_atomic

SPAWN = get_context("spawn")  # CUDA does not survive a fork
LISTS = ("checks", "rows", "bars", "growth")
STARTING = 30.0  # seconds that a new worker may take beyond its first job's, to load torch and the device
ENDED = ("ok", "refused")


@dataclass(frozen=True)
class Job:
    """A function of a module's top level with its arguments; it returns a dict of lists named as in `LISTS`.

    Args:
        key: names it in the file; a job that ended well under this key is not run again.
        seconds: after so many it is ended.
        missed: what stands in the file while it has no result, in the same form.
    """

    key: str
    run: Callable[..., dict[str, Any]]
    arguments: tuple = ()
    seconds: float = 60.0
    missed: dict[str, Any] = field(default_factory=dict)


@dataclass
class Worker:
    """A process that does one job after another, until its pipe is closed."""

    process: BaseProcess
    pipe: Connection
    job: Job | None = None
    begun: float = 0.0
    fresh: bool = True

    @classmethod
    def start(cls) -> Worker:
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours)

    def give(self, job: Job) -> None:
        self.job, self.begun = job, time.monotonic()
        self.pipe.send((job.run, job.arguments))

    def late(self, now: float) -> bool:
        return self.job is not None and now - self.begun > self.job.seconds + (STARTING if self.fresh else 0.0)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def serve(pipe: Connection) -> None:
    """A worker's loop."""
    while True:
        try:
            run, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("ok", run(*arguments)))
        except Exception as error:  # the job's row keeps it
            said = traceback.format_exception_only(error)[-1].strip()
            pipe.send(("failed", f"{said[:500]} ({last_frame(error)})"))


def last_frame(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"


def identity(machine: dict[str, Any]) -> tuple:
    """What records must share to be gone on with, or to vouch for one another: the device, torch, and the code."""
    return tuple(machine.get(key) for key in ("device_name", "torch", "git_commit", "git_dirty"))


class Part:
    """The file of one part: what each job gave, and how it ended. ``main`` is the list that is there even when empty.

    A file of another device or other code is put aside under its commit, and begun anew.
    """

    def __init__(self, path: Path, machine: dict[str, Any], main: str = "rows") -> None:
        self.path, self.machine, self.main = path, machine, main
        self.jobs: dict[str, dict[str, Any]] = {}
        if path.exists():
            try:
                held = read_json(path)
                self.jobs, before = dict(held["jobs"]), held["machine"]
                if identity(before) != identity(machine):
                    path.rename(path.with_name(f"{path.stem}.{str(before.get('git_commit'))[:8]}.json"))
                    self.jobs = {}
            except (RequestError, KeyError, TypeError, ValueError) as error:
                raise SystemExit(f"{path} is no record of this script ({error}); move it away") from error

    def done(self, key: str) -> bool:
        return self.jobs.get(key, {}).get("status") in ENDED

    def put(self, job: Job, status: str, seconds: float, found: dict[str, Any], reason: str | None = None) -> None:
        """Keep how a job ended and write the file; what an earlier start found out stays until there is more to say."""
        if self.done(job.key) or (status == "not reached" and job.key in self.jobs):
            return
        self.jobs[job.key] = {
            "status": status, "seconds": round(seconds, 2), "reasons": [reason] if reason else [], "found": found,
        }  # fmt: skip
        self.write()

    def write(self) -> None:
        found = [job["found"] for job in self.jobs.values()]
        lists = {name: [line for one in found for line in one.get(name, [])] for name in LISTS}
        lists = {name: lines for name, lines in lists.items() if lines or name == self.main}
        rates = next((one["rates"] for one in found if "rates" in one), {})
        write_json_atomic(self.path, {**lists, "machine": {**self.machine, **rates}, "jobs": self.jobs})


def run_jobs(part: Part, jobs: Iterable[Job], seconds: float, workers: int = 1) -> list[str]:
    """Do the jobs that the file does not hold yet, in order, those that failed before last; the keys that did not end well.

    No job begins after ``seconds``, and what still runs then is ended.
    """
    end = time.monotonic() + seconds
    todo = [job for job in jobs if not part.done(job.key)]
    todo.sort(key=lambda job: job.key in part.jobs)  # stable: what was tried before comes last
    for job in todo:
        part.put(job, "not reached", 0.0, job.missed, f"the {seconds:g} s were over before its turn")
    waiting = todo[::-1]
    crew: list[Worker] = []
    try:
        while (waiting or any(worker.job for worker in crew)) and time.monotonic() < end:
            while waiting and len(crew) < workers:
                crew.append(Worker.start())
            for worker in crew:
                if worker.job is None and waiting:
                    worker.give(waiting.pop())
            wait([worker.pipe for worker in crew if worker.job], timeout=min(1.0, max(end - time.monotonic(), 0.0)))
            crew = [worker for worker in crew if look(worker, part)]
    finally:
        for worker in crew:
            if worker.job is not None:
                part.put(worker.job, "not ended", time.monotonic() - worker.begun, worker.job.missed,
                         f"it was running when the {seconds:g} s were over")  # fmt: skip
            worker.end()
    return [job.key for job in todo if not part.done(job.key)]


def look(worker: Worker, part: Part) -> bool:
    """Take what a worker has to say; False when it has been ended."""
    job, now = worker.job, time.monotonic()
    if job is None:
        return True
    if worker.pipe.poll():
        try:
            status, found = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(5)
            why = f"its process ended with status {worker.process.exitcode}"
            part.put(job, "failed", now - worker.begun, job.missed, why)
            worker.end()
            return False
        if status == "ok":
            part.put(job, "ok", now - worker.begun, found)
        else:
            part.put(job, status, now - worker.begun, job.missed, found)
        worker.job, worker.fresh = None, False
    elif worker.late(now):
        part.put(job, "failed", now - worker.begun, job.missed, f"it had not ended after {now - worker.begun:.0f} s")
        worker.end()
        return False
    return True
