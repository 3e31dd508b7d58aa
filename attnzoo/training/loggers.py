"""Where numbers go while a model trains: ``metrics.jsonl`` always, W&B, and what `attnzoo.training.handed` has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger

from attnzoo.errors import RequestError
from attnzoo.files import finite, read_json_lines, write_text_atomic
from attnzoo.training.wandb_run import WandbRun


class JsonLines(Logger):
    """One JSON object a line and a step, flushed at once. A resumed run goes on after the lines of the steps it keeps.

    Args:
        path: the file.
        keep_until: the step a run is resumed from; later lines, and one cut short, are dropped. 0 starts anew.
    """

    def __init__(self, path: Path, keep_until: int = 0) -> None:
        super().__init__()
        self.path = path
        self.last_step: int | None = None
        self._rewrite([row for row in read_json_lines(path) if row["step"] <= keep_until] if keep_until else [])

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: the settings are in ``config.yaml``."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        row = finite({"step": step, **metrics})
        if step == self.last_step:  # what is added to a step after its line was written
            *before, last = read_json_lines(self.path)
            self._rewrite([*before, last | row])
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise RequestError(f"cannot write {self.path}: {error.strerror or error}") from error
        self.last_step = step

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        write_text_atomic(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        self.last_step = rows[-1]["step"] if rows else None


class WandbLogger(Logger):
    """Hands numbers to a `WandbRun`, which never raises. Whoever opened the run finishes it, after the record."""

    def __init__(self, run: WandbRun) -> None:
        super().__init__()
        self.run = run

    @property
    def name(self) -> str:
        return "wandb"

    @property
    def version(self) -> str:
        return self.run.id

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: the settings were given when the run was opened."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.run.log({"step": step, **metrics})
