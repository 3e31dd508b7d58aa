"""Running cells, each in a process of its own: peak memory, caches and crashes stay its own. No torch here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from queue import SimpleQueue

from attnzoo.comparison.children import Children, Ended
from attnzoo.comparison.devices import VISIBLE
from attnzoo.comparison.plan import FINISHED, Cell
from attnzoo.comparison.rounds import keep_history
from attnzoo.errors import RequestError
from attnzoo.measure.record import Record
from attnzoo.model.config import positions_asked
from attnzoo.training.config import to_dict
from attnzoo.training.log import LOG

MODULE = "attnzoo.training.__main__"
Say = Callable[[Cell, Record, float], None]


def run_cells(
    cells: Sequence[Cell], jobs: int, say: Say, limit: float | None = None, devices: Sequence[str] = ()
) -> None:
    """Run each cell to its record, ``jobs`` at a time; ``say`` hears of each as it ends, with the seconds its process took.

    Args:
        limit: seconds a cell may take; one that takes longer is stopped and has failed.
        devices: CUDA devices, one a job, each seen by one cell at a time; none leaves them as they are.

    Raises:
        KeyboardInterrupt: after the running cells were stopped and had written their records.
    """
    children, free = Children(), SimpleQueue[str]()
    for device in devices:
        free.put(device)
    threads = max((os.cpu_count() or 1) // jobs, 1) if jobs > 1 else None
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        waiting: dict[Future[tuple[Record, float]], Cell] = {
            pool.submit(_run_on, free if devices else None, cell, children, threads, limit): cell for cell in cells
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


def _run_on(
    free: SimpleQueue[str] | None, cell: Cell, children: Children, threads: int | None, limit: float | None
) -> tuple[Record, float]:
    """`_run` with a device of its own as the only one it sees; there is one for every job."""
    if free is None:
        return _run(cell, children, threads, limit)
    device = free.get()
    try:
        return _run(cell, children, threads, limit, {VISIBLE: device})
    finally:
        free.put(device)


def _run(
    cell: Cell,
    children: Children,
    threads: int | None,
    limit: float | None,
    environment: Mapping[str, str] | None = None,
) -> tuple[Record, float]:
    """One cell, from where an earlier start of it got to, and its seconds. What its process did not say is put in."""
    folder, path = cell.folder, cell.folder / "record.json"
    folder.mkdir(parents=True, exist_ok=True)
    earlier, stamp = _read(path), _stamp(path)
    ended = children.call(
        MODULE, [str(folder), "-"], folder / LOG,
        given=json.dumps(to_dict(cell.cfg)), threads=threads, limit=limit, environment=environment,
    )  # fmt: skip
    written = _read(path) if _stamp(path) != stamp else None
    record = _closed(cell, ended, earlier, written, stopped=children.stopped)
    if earlier is not None:
        keep_history(earlier, record)
    if record != written:
        record.save(path)
    return record, ended.seconds


def _closed(cell: Cell, ended: Ended, earlier: Record | None, written: Record | None, *, stopped: bool) -> Record:
    """The record of this start.

    Args:
        earlier: what stood in the folder before; never taken for what this start did, unless it says that it kept it.
        written: what this start has written, which may be of its beginning.
    """
    if earlier is not None and written is None and ended.status == 0 and _is_finished(earlier, cell):
        return earlier
    if written is not None and _is_closed(written, ended):
        record = Record(written)
    else:
        record = Record(_planned(cell) | _carried(cell, earlier) | (written or {}))
        status = "interrupted" if stopped and ended.limit is None else "failed"
        record.update(status=status, reasons=[ended.why])
    if record["status"] == "failed" and not record.get("error"):
        record["error"] = ended.error()
    return record


def _is_finished(earlier: Record, cell: Cell) -> bool:
    return earlier["status"] in FINISHED and earlier.get("config_hash") == cell.hash


def _is_closed(written: Record, ended: Ended) -> bool:
    """Whether the record tells how this start ended: it was written at the end, and nothing stopped the process before."""
    by_itself = ended.status >= 0 and ended.limit is None
    return "end" in written.get("environment", {}) and (by_itself or written["status"] in FINISHED)


def _carried(cell: Cell, earlier: Record | None) -> dict:
    """What stays true of a cell whose new start has left no record: all of it, or what led here where it was to train on."""
    if earlier is None:
        return {}
    same = earlier.get("config_hash") == cell.hash
    kept = [key for key in earlier if key != "error"] if same else ("starts", "history", "cost_history")
    return {key: earlier[key] for key in kept if key in earlier}


def _planned(cell: Cell) -> dict:
    """What is known of a cell that has said nothing."""
    return {
        "attention": cell.cfg.attention.name,
        "options": cell.cfg.attention.options,
        "seed": cell.cfg.seed,
        "config_hash": cell.hash,
        "positions": positions_asked(cell.cfg.positions),
    }


def _stamp(path: Path) -> tuple[int, ...] | None:
    """What changes whenever the file is written, which always makes a new one."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: Path) -> Record | None:
    """The record, or None where there is none that can be read."""
    try:
        return Record.load(path)
    except RequestError:
        return None
