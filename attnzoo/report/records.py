"""Finding the records of a comparison, with one for every planned cell, whatever became of it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnzoo.errors import RequestError
from attnzoo.files import read_json
from attnzoo.measure.record import Record
from attnzoo.redact import redacted

PLAN = "comparison.json"


@dataclass
class Found:
    """Records of one folder.

    Args:
        folder: where they were found.
        records: one a cell; each also holds ``run``, its folder relative to ``folder``, and in a sweep ``swept``: key -> value.
        plan: the content of ``comparison.json``: ``{"command": str, "cells": [{"run", "attention", "seed", …}]}``;
            every key is optional, and keys of a cell that a record has too are taken over into a missing record.
    """

    folder: Path
    records: list[Record]
    plan: Record = field(default_factory=Record)


def find_records(folder: str | os.PathLike[str]) -> Found:
    """Read every ``record.json`` at or below ``folder``, in the order of the plan, then by name.

    A planned cell without a record becomes an ``interrupted`` record; a record that cannot be read a ``failed`` one.

    Raises:
        RequestError: no such folder, or neither a record nor a plan in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RequestError(f"{folder} is {'a file, not a run folder' if folder.exists() else 'not there'}")
    plan = Record(redacted(read_json(folder / PLAN))) if (folder / PLAN).is_file() else Record()
    planned = {str(cell.get("run", "?")): cell for cell in plan.get("cells", [])}
    paths = {path.parent.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("record.json"))}
    if not paths and not planned:
        raise RequestError(f"no run record in {folder}", ["a run folder holds record.json, a comparison one a cell"])
    runs = [*planned, *(run for run in paths if run not in planned)]
    return Found(folder, [_record(run, paths.get(run), planned.get(run, {})) for run in runs], plan)


def dig(record: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """``dig(record, "cost.train_step_ms.median")``; ``default`` where a level is missing or None."""
    here: Any = record
    for name in path.split("."):
        here = here.get(name) if isinstance(here, Mapping) else None
    return default if here is None else here


def number(record: Mapping[str, Any], path: str) -> float | None:
    """The finite number at ``path``, or None."""
    found = dig(record, path)
    good = isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found)
    return found if good else None


def _record(run: str, path: Path | None, cell: Mapping[str, Any]) -> Record:
    if path is None:
        return Record({**cell, "run": run, "status": "interrupted", "reasons": ["no record: stopped before it ended"]})
    try:
        return Record({**Record.load(path), **{key: cell[key] for key in ("swept",) if cell.get(key)}, "run": run})
    except RequestError as error:
        reasons = [error.message, *error.reasons]
        return Record({"attention": Path(run).name, **cell, "run": run, "status": "failed", "reasons": reasons})
