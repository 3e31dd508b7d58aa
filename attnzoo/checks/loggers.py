"""What `check logger:NAME` holds a logger to: it takes whatever a run has, changes nothing, goes on, and stays in its folder."""

from __future__ import annotations

import copy
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnzoo import components
from attnzoo.arguments import demand
from attnzoo.checks.compare import Failed
from attnzoo.errors import Refused
from attnzoo.loggers.base import Logger
from attnzoo.measure.record import STATUSES
from attnzoo.options import Options

CONFIG = {
    "attention": {"name": "sdpa", "window": None},
    "seed": 0,
    "trainer": {"betas": [0.9, 0.95]},
    "run_dir": "runs/x",
}
ROWS: list[tuple[int, dict[str, float]]] = [
    (1, {"tokens": 64, "train_loss_nats": 5.5}),
    (2, {"tokens": 128, "val_loss_nats": 5.25, "val_tokens": 500}),  # other keys than before
    (5, {"tokens": 320, "train_loss_nats": math.nan, "grad_norm": math.inf}),
]
RECORD = {
    "status": "ok",
    "reasons": [],
    "quality": {"val_loss_nats": 5.25, "curve": [[128, 5.25]]},
    "cost": {"parameters": 7},
}


@dataclass
class Subject:
    """A logger that can be made anew."""

    cls: type[Logger]
    options: Options

    def make(self) -> Logger:
        return self.cls(self.options)


def subject(cls: type[Logger], given: Mapping[str, Any], device: str) -> Subject:
    options, faults = components.read_class(cls.Options, "logger", cls.name, given, "")
    demand(f"the logger {cls.__name__} cannot be checked", faults)
    assert options is not None
    return Subject(cls, cls.Options(**vars(options)))


@contextmanager
def run_folder(s: Subject) -> Iterator[Path]:
    """An empty run folder; what the logger lacks here is a refusal."""
    if reasons := s.cls.why_not():
        raise Refused(f"{s.cls.__name__} cannot be used here", reasons)
    with tempfile.TemporaryDirectory() as place:
        (folder := Path(place) / "run").mkdir()
        yield folder


def takes_what_a_run_has(s: Subject) -> str:
    """Steps with unlike keys, NaN and infinities, and records of every status raise nothing."""
    for status in STATUSES:
        with run_folder(s) as folder:
            _run(s.make(), folder, RECORD | {"status": status})
    return f"{len(ROWS)} steps, {', '.join(STATUSES)}"


def ends_early(s: Subject) -> str:
    """A run that fails before its first step is finished too."""
    with run_folder(s) as folder:
        logger = s.make()
        logger.start(folder, copy.deepcopy(CONFIG))
        logger.finish({"status": "failed", "reasons": ["it did not end"]})
    return "start and finish alone"


def goes_on(s: Subject) -> str:
    """A new instance goes on in the folder of an earlier start."""
    with run_folder(s) as folder:
        _run(s.make(), folder, RECORD | {"status": "interrupted"})
        _run(s.make(), folder, RECORD, later=10)
    return "two starts"


def leaves_its_input(s: Subject) -> str:
    """Numbers, settings and record are as they were: the loggers after it read the same ones."""
    with run_folder(s) as folder:
        logger, config, record = s.make(), copy.deepcopy(CONFIG), copy.deepcopy(RECORD)
        logger.start(folder, config)
        numbers = dict(ROWS[0][1])
        logger.log(1, numbers)
        logger.finish(record)
    for name, now, before in (("numbers", numbers, ROWS[0][1]), ("config", config, CONFIG), ("record", record, RECORD)):
        if now != before:
            raise Failed(str(before), str(now), name)
    return "numbers, config, record"


def stays_in_its_folder(s: Subject) -> str:
    """It writes below the run folder, not where the command was started."""
    with run_folder(s) as folder:
        before = Path.cwd()
        os.chdir(folder.parent)
        try:
            _run(s.make(), folder, RECORD)
        finally:
            os.chdir(before)
        if stray := sorted(path.name for path in folder.parent.iterdir() if path != folder):
            raise Failed("nothing beside the run folder", ", ".join(stray))
    return "with another working directory"


PROPERTIES = (takes_what_a_run_has, ends_early, goes_on, leaves_its_input, stays_in_its_folder)


def _run(logger: Logger, folder: Path, record: dict[str, Any], later: int = 0) -> None:
    logger.start(folder, copy.deepcopy(CONFIG))
    for step, numbers in ROWS:
        logger.log(step + later, dict(numbers))
    logger.finish(copy.deepcopy(record))
