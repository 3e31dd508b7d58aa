"""`compare`, and what a sweep shares with it: run what is not done yet, time all of them together, write the report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnzoo import processes
from attnzoo.arguments import demand, instance
from attnzoo.comparison import NEEDED
from attnzoo.comparison.account import Account, account_line
from attnzoo.comparison.cells import run_cells
from attnzoo.comparison.children import call_alone
from attnzoo.comparison.devices import device_each
from attnzoo.comparison.plan import Cell, Plan, more_steps, plan, write_plan, write_time
from attnzoo.comparison.rounds import all_rounds
from attnzoo.comparison.texts import with_texts
from attnzoo.errors import AttnzooError, RequestError, Stopped
from attnzoo.lock import locked
from attnzoo.measure.record import Record
from attnzoo.report import write_report
from attnzoo.terminal import say
from attnzoo.training.config import CompareConfig
from attnzoo.training.init_from import identified
from attnzoo.training.log import LOG, last_traceback
from attnzoo.training.stopping import Stopping
from attnzoo.training.together import process_faults
from attnzoo.training.validation import faults, machine_faults

SUMMARY_SECONDS = 300.0


def compare(cfg: CompareConfig, *, started: float | None = None, debug: bool = False) -> list[Record]:
    """Train every backend with every seed on the same data for the same tokens, and measure them side by side.

    Each cell runs in a process of its own and in its own folder below ``cfg.run_dir``; refused, out-of-memory and failed
    cells keep their row with the reasons. Afterwards all models take turns in the timing rounds of one process. Started
    again, it keeps what has finished and goes on with the rest from its checkpoints; where cells have joined, all are timed
    again, together. ``comparison.json`` says where the time went.

    Args:
        cfg: what to compare.
        started: `time.monotonic` of the request, where that was earlier than this call.
        debug: show the traceback of each cell that fails.

    Returns:
        one record a cell, in the order of backends and seeds.

    Raises:
        RequestError: a wrong setting, or a folder that holds another comparison or is in use. Nothing has been started.
    """
    expected = "a comparison's configuration, as attnzoo.compose('compare', …) makes"
    demand("this comparison cannot be started", instance("cfg", cfg, CompareConfig, expected))
    if wrong := faults(cfg) + machine_faults(cfg):
        raise RequestError("this comparison cannot be started", wrong)
    return carry_out(plan(identified(cfg)), started=started, debug=debug)


def carry_out(plan: Plan, *, started: float | None = None, debug: bool = False) -> list[Record]:
    """Run the cells of a plan that are not done yet, time them together, write the report; one record a cell, in order.

    Raises:
        RequestError: the folder is in use or cannot be written. Nothing has been started.
        AttnzooError: the timing rounds failed; everything else is done and written.
        Stopped: by Ctrl-C or SIGTERM, after the running cells had written what they had.
    """
    folder = plan.folder
    if several := process_faults():
        raise RequestError("this comparison cannot be started", several)
    with locked(folder), stoppable(folder):
        plan = with_texts(plan)
        cells = plan.cells
        if longer := more_steps(plan):
            say(longer)
        done = {cell.run for cell in cells if cell.finished()}
        to_do = [cell for cell in cells if cell.run not in done]
        jobs = max(min(plan.jobs, len(to_do)), 1)
        devices = device_each(to_do, jobs)
        write_plan(plan)
        account = Account(jobs) if started is None else Account(jobs, started)
        untimed = []
        with _loaded(to_do):
            begun = time.monotonic()
            run_cells(to_do, jobs, Progress(len(cells), len(done), account, debug), plan.time_limit, devices)
            account.cells = time.monotonic() - begun
            for rounds in all_rounds(plan):
                seconds, fault = rounds.run(plan)
                account.timing += seconds
                untimed += [fault] if fault else []
            write_report(folder)
            if plan.logger.wandb != "disabled":
                _log_summary(plan)
        if to_do or account.timing:
            parts = account.parts()
            write_time(folder, parts)
            say(account_line(parts))
    if untimed:
        raise AttnzooError("the cells have no timings from this start; the same command takes them again", untimed)
    records = [Record.load(cell.folder / "record.json") for cell in cells]
    for cell, record in zip(cells, records, strict=True):
        if cell.swept:
            record["swept"] = cell.swept  # as the report has it from the plan
    return records


@contextmanager
def stoppable(folder: Path) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop the running cells, which write their checkpoints and records, and say how to go on."""
    try:
        with Stopping().listening():
            yield
    except Stopped as stop:
        raise Stopped(stop.signum, f"{folder}: {stop}; the same command goes on from there") from None


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
            say(f"each cell loads torch and Lightning anew: {why_not}")
        yield


class Progress:
    """A line for each cell as it ends, and its time to the account."""

    def __init__(self, total: int, kept: int, account: Account, debug: bool = False) -> None:
        self.total, self.ended, self.account, self.debug = total, kept, account, debug
        if kept:
            say(f"{kept} of {total} cells were finished before and are kept")

    def __call__(self, cell: Cell, record: Record, seconds: float) -> None:
        self.ended += 1
        self.account.add(record, seconds)
        say(f"[{self.ended}/{self.total}] {cell.run}: {summary_line(record)}")
        if record["status"] == "failed" and record.get("error"):
            log = cell.folder / LOG
            say(last_traceback(log) if self.debug else f"  {log} has the traceback; --debug shows it")


def summary_line(record: Record) -> str:
    """'2.51 bits per byte, recall 0.99, 41 s' or 'refused: no CUDA …'."""
    if record["status"] != "ok":
        frame = f" (at {error['frame']})" if (error := record.get("error") or {}).get("frame") else ""
        return f"{record['status']}: {'; '.join(record.get('reasons', []))}{frame}"
    quality = record.get("quality", {})
    parts = []
    if quality.get("val_bits_per_byte") is not None:
        parts.append(f"{quality['val_bits_per_byte']:.3f} bits per byte")
    parts += [f"{task} {accuracy:.2f}" for task, accuracy in quality.get("task_accuracy", {}).items()]
    if "leak" in record:
        leak = record["leak"]
        parts.append(leak.get("verdict", "leaks" if not leak["passed"] else "no leak").replace("leaks", "LEAKS"))
    return ", ".join([*parts, f"{record['environment']['seconds']:.0f} s"])


def _log_summary(plan: Plan) -> None:
    """The summary's W&B run, in a process that may have loaded W&B already. What it has to say goes to the terminal."""
    log, logger = plan.folder / "summary.log", plan.logger
    arguments = [str(plan.folder), logger.wandb, logger.project, logger.group or ""]
    ended = call_alone("attnzoo.report.wandb_summary", arguments, log, limit=SUMMARY_SECONDS)
    if said := ended.said.strip():
        say(said)
    if ended.status or ended.limit:  # nothing of W&B's is a reason to fail
        say(f"the summary for W&B: {ended.why}")
