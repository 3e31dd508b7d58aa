"""Numbers on their way to the loggers that a person has chosen: each step once, over all starts of a run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger as LightningLogger

from attnzoo import components, options
from attnzoo.errors import RequestError
from attnzoo.files import read_json, read_json_lines, write_json_atomic
from attnzoo.loggers.base import Logger
from attnzoo.redact import redacted
from attnzoo.terminal import one_line, say
from attnzoo.training.config import RunConfig, chosen_loggers, to_dict


class Handed(LightningLogger):
    """Hands the numbers of steps over to one logger, which may raise what it likes.

    A step's numbers come in parts (a run that was stopped while it scored goes on with that), so they wait for the next step's.
    Which step was the last is kept in ``checkpoints/loggers.json``; what an earlier start left in ``metrics.jsonl`` and never
    handed over comes first.

    Args:
        known: the logger's name.
        folder: of the run.
        config: for the logger.
        resume_step: the lines of ``metrics.jsonl`` up to it are of this run.
    """

    def __init__(self, known: str, logger: Logger, folder: Path, config: dict[str, Any], resume_step: int) -> None:
        super().__init__()
        self.known, self.logger = known, logger
        self.problems: list[str] = []
        self.marks = folder / "checkpoints" / "loggers.json"
        self.last = int(self._read_marks().get(known, 0))
        self.waiting: tuple[int, dict[str, float]] | None = None
        self.usable = self._safely("start", lambda: logger.start(folder, copy.deepcopy(config)))
        for row in read_json_lines(folder / "metrics.jsonl"):
            if (step := row.pop("step")) <= resume_step:
                self.log_metrics(row, step)

    @property
    def name(self) -> str:
        return self.known

    @property
    def version(self) -> str:
        return ""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: the settings were given at the start."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if step is None or step <= self.last:
            return
        if self.waiting is not None and self.waiting[0] == step:
            self.waiting = (step, {**self.waiting[1], **metrics})
            return
        self._hand_over()
        self.waiting = (step, dict(metrics))

    def finish(self, record: dict[str, Any]) -> None:
        """The end of this start. Of one that is interrupted the last step may be half done: the next start hands it over."""
        if record.get("status") != "interrupted":
            self._hand_over()
        if self.usable:
            self._safely("finish", lambda: self.logger.finish(record))

    def _hand_over(self) -> None:
        if self.waiting is None or not self.usable:
            return
        step, numbers = self.waiting
        self.waiting = None
        self.usable = self._safely(f"log at step {step}", lambda: self.logger.log(step, numbers))
        if self.usable:
            self.last = step
            write_json_atomic(self.marks, {**self._read_marks(), self.known: step})

    def _safely(self, what: str, act: Callable[[], Any]) -> bool:
        try:
            act()
        except (Exception, SystemExit) as error:  # nothing that a logger does may end the training
            self.problems.append(
                f"the logger {self.known} failed in {what} ({one_line(error)}); the run went on without it"
            )
            say(self.problems[-1])
            return False
        return True

    def _read_marks(self) -> dict[str, Any]:
        with suppress(RequestError, OSError):  # none yet, or cut off: then everything is new
            return read if isinstance(read := read_json(self.marks), dict) else {}
        return {}


def handed_loggers(cfg: RunConfig, folder: Path, resume_step: int) -> list[Handed]:
    """The loggers that a run's settings choose, started."""
    made, config = [], redacted(to_dict(cfg))
    for name in chosen_loggers(cfg.logger):
        cls = components.get("logger", name)
        known = options.names(cls.Options, "logger")
        mine = {key: value for key, value in cfg.logger.options.items() if key in known}
        made.append(Handed(name, cls(components.parse("logger", name, mine)), folder, config, resume_step))
    return made
