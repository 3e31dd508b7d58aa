"""Where numbers go while a model trains: ``metrics.jsonl`` always, CSV and W&B beside it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger

from attnzoo.errors import RequestError
from attnzoo.files import finite, write_text_atomic
from attnzoo.training.wandb_run import WandbRun


class JsonLines(Logger):
    """One JSON object a line and a step, flushed at once. A resumed run goes on after the lines of the steps it keeps.

    Args:
        path: the file.
        keep_until: the step a run is resumed from; later lines, and one cut short, are dropped. 0 starts anew.
        csv_path: also keep the same numbers there as a table, rewritten when training ends.
    """

    def __init__(self, path: Path, keep_until: int = 0, csv_path: Path | None = None) -> None:
        super().__init__()
        self.path, self.csv_path = path, csv_path
        self.last_step: int | None = None
        self._rewrite([row for row in read_lines(path) if row["step"] <= keep_until] if keep_until else [])

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
            *before, last = read_lines(self.path)
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

    def finalize(self, status: str) -> None:
        if self.csv_path is not None:
            write_csv(self.csv_path, read_lines(self.path))


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


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; a line cut short by a kill is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows with unlike keys as one table; a number that was not measured is an empty field."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text_atomic(path, text.getvalue())
