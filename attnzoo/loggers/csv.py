"""The numbers of all steps as one table."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from attnzoo.components import register
from attnzoo.files import read_json_lines, write_text_atomic
from attnzoo.loggers.base import Logger


@register("csv")
class Csv(Logger):
    """``metrics.csv``, a row a step, written at the end from ``metrics.jsonl``. ``logger.csv=true`` is short for it."""

    source = "attnzoo"

    def start(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder = folder

    def log(self, step: int, numbers: dict[str, float]) -> None:
        """Nothing: the lines have it."""

    def finish(self, record: dict[str, Any]) -> None:
        write_rows(self.folder / "metrics.csv", read_json_lines(self.folder / "metrics.jsonl"))


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows with unlike keys as one table; a number that was not measured is an empty field."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text_atomic(path, text.getvalue())
