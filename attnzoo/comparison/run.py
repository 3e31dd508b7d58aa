"""`compare`, and what a sweep shares with it: run what is not done yet, time all of them together, write the report."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnzoo import processes
from attnzoo.arguments import demand, instance
from attnzoo.comparison import NEEDED
from attnzoo.comparison.account import Account, account_line
from attnzoo.comparison.cells import Children, run_cells
from attnzoo.comparison.plan import Cell, Plan, plan, write_plan, write_time
from attnzoo.errors import AttnzooError, RequestError
from attnzoo.files import read_json
from attnzoo.lock import locked
from attnzoo.measure.record import Record
from attnzoo.report import write_report
from attnzoo.training.config import CompareConfig
from attnzoo.training.validation import faults, machine_faults


def compare(cfg: CompareConfig, *, started: float | None = None) -> list[Record]:
    """Train every backend with every seed on the same data for the same tokens, and measure them side by side.

    Each cell runs in a process of its own and in its own folder below ``cfg.run_dir``; refused, out-of-memory and failed
    cells keep their row with the reasons. Afterwards all models take turns in the timing rounds of one process. Started
    again, it keeps what has finished and goes on. ``comparison.json`` says where the time went.

    Args:
        cfg: what to compare.
        started: `time.monotonic` of the request, where that was earlier than this call.

    Returns:
        one record a cell, in the order of backends and seeds.

    Raises:
        RequestError: a wrong setting, or a folder that holds another comparison or is in use. Nothing has been started.
    """
    expected = "a comparison's configuration, as attnzoo.compose('compare', …) makes"
    demand("this comparison cannot be started", instance("cfg", cfg, CompareConfig, expected))
    if wrong := faults(cfg) + machine_faults(cfg):
        raise RequestError("this comparison cannot be started", wrong)
    return carry_out(plan(cfg), started=started)


def carry_out(plan: Plan, *, started: float | None = None) -> list[Record]:
    """Run the cells of a plan that are not done yet, time them together, write the report; one record a cell, in order.

    Raises:
        RequestError: the folder is in use or cannot be written. Nothing has been started.
    """
    cells, folder = plan.cells, plan.folder
    account = Account(plan.jobs) if started is None else Account(plan.jobs, started)
    with locked(folder):
        write_plan(plan)
        done = {cell.run: record for cell in cells if (record := cell.finished())}
        to_do = [cell for cell in cells if cell.run not in done]
        with _loaded(to_do):
            begun = time.monotonic()
            run_cells(to_do, plan.jobs, Progress(len(cells), len(done), account))
            account.cells = time.monotonic() - begun
            for n, group in enumerate(_timed_together(cells), 1):
                name = f"timing-{n}" if n > 1 else "timing"
                account.timing += _time(plan, group, name, fresh=any(cell in to_do for cell in group))
            write_report(folder)
            if plan.logger.wandb != "disabled":
                _log_summary(plan)
        if to_do or account.timing:
            parts = account.parts()
            write_time(folder, parts)
            print(account_line(parts), file=sys.stderr, flush=True)
    records = [Record.load(cell.folder / "record.json") for cell in cells]
    for cell, record in zip(cells, records, strict=True):
        if cell.swept:
            record["swept"] = cell.swept  # as the report has it from the plan
    return records


@contextmanager
def _loaded(cells: list[Cell]) -> Iterator[None]:
    """Processes are forked off one that has loaded what every cell needs, where it is safe."""
    if not cells:
        yield
        return
    # and what wandb.init loads at its first call, for two seconds
    wandb = () if cells[0].cfg.logger.wandb == "disabled" else ("wandb.sdk.launch.inputs.internal", "requests")
    with processes.preloaded(NEEDED, *wandb) as why_not:
        if why_not:
            print(f"each cell loads torch and Lightning anew: {why_not}", file=sys.stderr, flush=True)
        yield


class Progress:
    """A line for each cell as it ends, and its time to the account."""

    def __init__(self, total: int, kept: int, account: Account) -> None:
        self.total, self.ended, self.account = total, kept, account
        if kept:
            print(f"{kept} of {total} cells were finished before and are kept", file=sys.stderr, flush=True)

    def __call__(self, cell: Cell, record: Record, seconds: float) -> None:
        self.ended += 1
        self.account.add(record, seconds)
        print(f"[{self.ended}/{self.total}] {cell.run}: {summary_line(record)}", file=sys.stderr, flush=True)


def summary_line(record: Record) -> str:
    """'2.51 bits per byte, recall 0.99, 41 s' or 'refused: no CUDA …'."""
    if record["status"] != "ok":
        return f"{record['status']}: {'; '.join(record.get('reasons', []))}"
    quality = record.get("quality", {})
    parts = []
    if quality.get("val_bits_per_byte") is not None:
        parts.append(f"{quality['val_bits_per_byte']:.3f} bits per byte")
    parts += [f"{task} {accuracy:.2f}" for task, accuracy in quality.get("task_accuracy", {}).items()]
    if "leak" in record:
        leak = record["leak"]
        parts.append(leak.get("verdict", "leaks" if not leak["passed"] else "no leak").replace("leaks", "LEAKS"))
    return ", ".join([*parts, f"{record['environment']['seconds']:.0f} s"])


def _timed_together(cells: list[Cell]) -> list[list[Cell]]:
    """Cells whose timings are taken in the same way; a sweep may have several such groups."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.timed:
            trainer = cell.cfg.trainer
            how = (trainer.batch_size, trainer.device, trainer.precision, cell.cfg.task.n_tokens, cell.cfg.measure)
            groups.setdefault(repr(how), []).append(cell)
    return list(groups.values())


def _time(plan: Plan, cells: list[Cell], name: str, fresh: bool) -> float:
    """Time one cell a variant, all taking turns in one process, and put the results into every seed's record; the seconds."""
    records = [Record.load(cell.folder / "record.json") for cell in cells]
    first = {cell.variant: cell for cell, r in zip(cells[::-1], records[::-1], strict=True) if r["status"] == "ok"}
    path, log = plan.folder / f"{name}.json", plan.folder / f"{name}.log"
    if not first or (not fresh and all("train_step_ms" in r.get("cost", {}) for r in records if r["status"] == "ok")):
        return 0.0
    print(f"timing {'; '.join(reversed(first))}: all take turns", file=sys.stderr, flush=True)
    path.unlink(missing_ok=True)
    runs = [word for variant in reversed(first) for word in (variant, str(first[variant].folder))]
    status = _call("attnzoo.comparison.timing", [str(path), plan.baseline, *runs], log)
    if status or not path.is_file():
        raise AttnzooError(f"the timing rounds ended with exit status {status}; the trained cells are kept: see {log}")
    timed = read_json(path)
    for cell, record in zip(cells, records, strict=True):
        if record["status"] == "ok":
            record.setdefault("cost", {}).update(timed["cost"][cell.variant])
            record.save(cell.folder / "record.json")
    return timed["seconds"]


def _log_summary(plan: Plan) -> None:
    """The summary's W&B run, in a process that may have loaded W&B already. What it has to say goes to the terminal."""
    log, logger = plan.folder / "summary.log", plan.logger
    arguments = [str(plan.folder), logger.wandb, logger.project, logger.group or ""]
    status = _call("attnzoo.report.wandb_summary", arguments, log)
    if said := log.read_text(encoding="utf-8", errors="replace").strip():
        print(said, file=sys.stderr, flush=True)
    if status:  # nothing of W&B's is a reason to fail
        print(f"the summary for W&B ended with exit status {status}: see {log}", file=sys.stderr, flush=True)


def _call(module: str, arguments: list[str], log: Path) -> int:
    """Run a module's ``main`` to its end, which Ctrl-C brings too; its exit status."""
    children = Children()
    try:
        return children.call(module, arguments, log)
    except KeyboardInterrupt:
        children.stop()
        raise
