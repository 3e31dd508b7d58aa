"""A Weights & Biases run that cannot hurt the training beside it. wandb is imported when a run is opened."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnzoo.names import wandb_name
from attnzoo.redact import redacted

AGENT = ("WANDB_RUN_ID", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH", "WANDB_RESUME", "WANDB_NAME", "WANDB_JOB_TYPE")
EXIT_CODES = {"ok": 0, "interrupted": 255}
"""By a record's status. 255 is what W&B itself notes of a KeyboardInterrupt."""


class WandbRun:
    """One W&B run. Nothing here raises because of W&B: what fails is said once on standard error, and training goes on.

    Args:
        folder: the run folder; everything W&B writes goes to ``folder/wandb``, caches included.
        mode: offline, online (offline instead when the server cannot be reached, said once) or disabled.
        config: settings to show; values of keys that name a secret are hidden.
        resume: go on with the run this folder already holds.
        warn: told why W&B gave up.
        init_timeout: seconds to wait for the server.
    """

    def __init__(
        self,
        folder: Path,
        *,
        mode: str = "offline",
        project: str = "attnzoo",
        group: str | None = None,
        name: str | None = None,
        job_type: str | None = None,
        config: Mapping[str, Any] | None = None,
        resume: bool = False,
        warn: Callable[[str], None] | None = None,
        init_timeout: float = 30.0,
    ) -> None:
        self.folder, self.mode, self.asked = Path(folder).resolve() / "wandb", mode, mode
        self.reason: str | None = None
        self.init_timeout = init_timeout
        self.warn = warn or (lambda line: print(line, file=sys.stderr, flush=True))
        self.id, self.run = "", None
        if mode == "disabled":
            return
        init: dict[str, Any] = {
            "project": project, "group": wandb_name(group), "name": wandb_name(name), "job_type": job_type,
        }  # fmt: skip
        init["config"] = redacted(dict(config or {}))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.id = run_id(self.folder, resume)
            self.run = self._open(init, resume)
        except Exception as error:  # W&B raises many kinds, and none is a reason not to train
            self._give_up("could not be started", error)

    def log(self, values: Mapping[str, Any]) -> None:
        """Log numbers; ``tokens`` among them is the x-axis, and those of one ``step`` are one row, also when it is resumed."""
        self._safely("stopped taking numbers", lambda run: run.log(dict(values), step=values.get("step")))

    def summarise(self, values: Mapping[str, Any]) -> None:
        """Put final numbers into the run's summary."""
        self._safely("took no summary", lambda run: run.summary.update(dict(values)))

    def finish(self, status: str = "ok") -> None:
        """Close the run; W&B shows one that was interrupted as killed, and any other that is not ok as failed."""
        self._safely("was not closed", lambda run: run.finish(exit_code=EXIT_CODES.get(status, 1)))
        self.run = None

    def status(self) -> dict[str, Any]:
        """What was asked for and what was done, for the record."""
        return {"asked": self.asked, "mode": self.mode, "reason": self.reason, "id": self.id or None}

    def _open(self, init: dict[str, Any], resume: bool) -> Any:
        import wandb

        with directories(self.folder, self.mode):
            if self.mode == "online":
                try:
                    return self._init(wandb, init, "online", resume)
                except Exception as error:
                    self.mode, self.reason = "offline", one_line(error)
                    self.id = run_id(self.folder, resume=False)  # the core still holds the one that failed
                    self.warn(f"W&B is not reachable ({self.reason}); this run is kept offline in {self.folder}")
            return self._init(wandb, init, "offline", resume)

    def _init(self, wandb: Any, init: dict[str, Any], mode: str, resume: bool) -> Any:
        wanted = {
            "silent": True, "console": "off", "init_timeout": self.init_timeout, "login_timeout": 30.0,
            "finish_timeout": 60.0, "disable_code": True,
            "x_disable_stats": True,  # its sampling thread would disturb what is timed
        }  # fmt: skip
        settings = wandb.Settings(**{k: v for k, v in wanted.items() if k in wandb.Settings.model_fields})
        again = "allow" if resume and mode == "online" else None
        run = wandb.init(
            mode=mode,
            dir=str(self.folder.parent),
            id=self.id,
            resume=again,
            reinit="create_new",
            settings=settings,
            **init,
        )
        self.id = run.id  # what W&B took, whoever named it
        run.define_metric("tokens", hidden=True)
        run.define_metric("*", step_metric="tokens")
        return run

    def _safely(self, what: str, act: Callable[[Any], Any]) -> None:
        if self.run is not None:
            try:
                with directories(self.folder, self.mode):
                    act(self.run)
            except Exception as error:  # see the class: nothing of W&B's may stop the training
                self._give_up(what, error)

    def _give_up(self, what: str, error: Exception) -> None:
        self.run, self.mode, self.reason = None, "disabled", one_line(error)
        self.warn(f"W&B {what} ({self.reason}); the run goes on without it")


def leave_agent() -> None:
    """Forget which run an agent of W&B has given to this process: it is one, and a comparison has many."""
    for name in AGENT:
        os.environ.pop(name, None)


def run_id(folder: Path, resume: bool) -> str:
    """The id of the folder's W&B run: an agent's, which it waits for; or drawn anew unless it is resumed, so that two runs
    never share one."""
    file = folder / "run_id"
    if resume and file.exists() and "WANDB_RUN_ID" not in os.environ:
        return file.read_text().strip()
    fresh = os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:8]
    file.write_text(fresh + "\n")
    return fresh


@contextmanager
def directories(folder: Path, mode: str) -> Iterator[None]:
    """W&B's caches under ``folder`` while open; it reads these variables whenever it needs one of the places.

    The folder with a person's own W&B settings is left in place when online: it may name their server. Offline it would
    still tell its maker's server how long its calls took, from two threads of its own.
    """
    places = {"WANDB_DIR": folder.parent, "WANDB_CACHE_DIR": folder / "cache", "WANDB_DATA_DIR": folder / "data"}
    wanted = {name: str(place) for name, place in places.items()}
    if mode == "offline":
        wanted |= {"WANDB_CONFIG_DIR": str(folder / "settings"), "WANDB_ERROR_REPORTING": "false"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def one_line(error: BaseException) -> str:
    """The first line of what an exception says."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
