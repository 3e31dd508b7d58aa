"""How a start ends: what goes into the record, what is said, and where a traceback is kept."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from attnzoo.errors import Stopped
from attnzoo.measure.environment import now
from attnzoo.measure.outcome import outcome, where
from attnzoo.measure.record import Record
from attnzoo.model.weights import save_weights
from attnzoo.training.log import write_traceback
from attnzoo.training.stopping import NAMES

if TYPE_CHECKING:
    from attnzoo.training.run import Run


def close(run: Run, status: str, reasons: list[str]) -> Record:
    """Put in how it ended, and write the record. A record of before that is ok stays unless this one is too: it then says
    that there was another start."""
    record, known = run.record, run.notes
    with run.stop.shield():
        record.update(status=status, reasons=reasons)
        record.environment.update(end=now(), seconds=known.seconds)
        start: dict[str, Any] = known.entry(status, record.get("kernels")) | ({"reasons": reasons} if reasons else {})
        record.update(starts=[*known.starts, start], history=known.history)
        if run.protected is not None and status != "ok":
            kept = Record(run.protected)
            kept.update(starts=[*(known.starts or kept.get("starts", [])), start])
            kept.save(run.folder.record)
            return record
        if run.protected is not None:
            save_weights(run.model, run.folder.weights, {"config_hash": record.config_hash})
        if run.protected is not None or not (run.folder.path / "config.yaml").exists():
            run.folder.write_config(run.cfg)
        record.save(run.folder.record)
    return record


def failed(run: Run, error: BaseException) -> Record:
    """The record of a start that broke, or was refused, with the place in the code; its traceback goes to the log."""
    status, reasons = outcome(error)
    if status != "refused":
        run.record.error = {"type": type(error).__name__, "frame": where(error), "log": run.folder.log.name}
        write_traceback(run.folder.log, error)
    return close(run, status, reasons)


def stopped_by(ended: BaseException) -> int | None:
    """The signal behind an exception; None where code of its own accord asked to exit."""
    if isinstance(ended, Stopped):
        return ended.signum
    if isinstance(ended, KeyboardInterrupt):
        return signal.SIGINT
    return (
        signal.SIGTERM if type(ended).__name__ == "SIGTERMException" else None
    )  # Lightning's, under a foreign handler


def how_it_stopped(run: Run, signum: int) -> str:
    """'stopped by Ctrl-C while training, at step 40 of 300; the same command goes on from there'."""
    step, last = run.notes.step, run.cfg.trainer.max_steps
    where_to = "the same command goes on from there" if step else "the same command starts at step 0"
    return f"stopped by {NAMES.get(signum, str(signum))} {run.doing}, at step {step} of {last}; {where_to}"
