"""Finding the records of a comparison, with one for every planned cell, whatever became of it."""

from __future__ import annotations

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
LARGEST = 1e150  # its square is still a float


@dataclass
class Found:
    """Records of one folder.

    Args:
        folder: where they were found.
        records: one a cell; each also holds ``run``, its folder relative to ``folder``, ``source``, the folder of its plan
            ("" without one), ``planned``, whether that plan still has it, and in a sweep ``swept``: key -> value.
        plan: the content of ``comparison.json``: ``{"command": str, "cells": [{"run", "attention", "seed", …}]}``;
            every key is optional, and keys of a cell that a record has too are taken over into a missing record.
    """

    folder: Path
    records: list[Record]
    plan: Record = field(default_factory=Record)


def find_records(folder: str | os.PathLike[str]) -> Found:
    """Read every ``record.json`` at or below ``folder``, in the order of the plans, then by name; what no plan has comes last.

    A planned cell without a record becomes an ``interrupted`` record; a record that cannot be read a ``failed`` one.

    Raises:
        RequestError: no such folder, or neither a record nor a plan in it, or a plan that cannot be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RequestError(f"{folder} is {'a file, not a run folder' if folder.exists() else 'not there'}")
    plans = {path.parent.relative_to(folder).as_posix(): _plan(path) for path in sorted(folder.rglob(PLAN))}
    planned = {_joined(home, cell["run"]): (home, cell) for home, plan in plans.items() for cell in _cells(plan)}
    paths = {path.parent.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("record.json"))}
    if not paths and not planned:
        raise RequestError(f"no run record in {folder}", ["a run folder holds record.json, a comparison one a cell"])
    records = [_record(run, paths.get(run), cell, home, True) for run, (home, cell) in planned.items()]
    for run, path in paths.items():
        if run not in planned:
            home = next((home for home in _above(run) if home in plans), None)
            lists_cells = home is not None and bool(_cells(plans[home]))
            records.append(_record(run, path, {}, home if lists_cells else None, not lists_cells))
    return Found(folder, records, plans.get(".", Record()))


def _plan(path: Path) -> Record:
    read = read_json(path)
    if not isinstance(read, dict):
        raise RequestError(f"{path} is not the plan of a comparison", ["it holds no JSON object"])
    return Record(redacted(read))


def _cells(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The cells of a plan that name a folder below it."""
    named = (cell for cell in items(plan, "cells") if isinstance(cell.get("run"), str))
    return [cell for cell in named if cell["run"] and not {"..", "/"} & set(Path(cell["run"]).parts)]


def _joined(home: str, run: str) -> str:
    return Path(home, run).as_posix()


def _above(run: str) -> list[str]:
    """The folders that hold a run, the nearest first."""
    return [parent.as_posix() for parent in Path(run).parents]


def dig(record: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """``dig(record, "cost.train_step_ms.median")``; ``default`` where a level is missing or None.

    The last name may itself hold dots, as that of a task may.
    """
    here: Any = record
    while isinstance(here, Mapping) and path not in here and "." in path:
        name, _, path = path.partition(".")
        here = here.get(name)
    found = here.get(path) if isinstance(here, Mapping) else None
    return default if found is None else found


def number(record: Mapping[str, Any], path: str) -> float | None:
    """The finite number at ``path``, or None; what is beyond `LARGEST` was not measured by anybody."""
    found = dig(record, path)
    good = isinstance(found, (int, float)) and not isinstance(found, bool) and abs(found) <= LARGEST
    return found if good else None


def mapping(record: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """What is held there as name -> value; nothing where it is something else."""
    found = dig(record, path)
    return found if isinstance(found, Mapping) else {}


def items(record: Mapping[str, Any], path: str) -> list[Mapping[str, Any]]:
    """The mappings of a list; nothing where it is something else."""
    found = dig(record, path)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def points(record: Mapping[str, Any], path: str) -> list[tuple[float, float]]:
    """The (x, y) of a curve that are numbers."""
    found = dig(record, path)
    pairs = (
        [{"x": p[0], "y": p[1]} for p in found if isinstance(p, list) and len(p) == 2]
        if isinstance(found, list)
        else []
    )
    each = ((number(pair, "x"), number(pair, "y")) for pair in pairs)
    return [(float(x), float(y)) for x, y in each if x is not None and y is not None]


def timing_set(record: Mapping[str, Any]) -> str | None:
    """What names the rounds its timings were taken in: the same for records that took turns, None where that is not known.

    Records before ``cost.timing_id`` are of one set where one plan holds them: all of its cells were timed together.
    """
    if (named := dig(record, "cost.timing_id")) is not None:
        return str(named)
    return f"the rounds of {record['source']}" if record.get("source") and record.get("planned") else None


def _record(run: str, path: Path | None, cell: Mapping[str, Any], home: str | None, planned: bool) -> Record:
    place = {"run": run, "source": home or "", "planned": planned}
    if path is None:
        return Record({**cell, **place, "status": "interrupted", "reasons": ["no record: stopped before it ended"]})
    try:
        return Record({**Record.load(path), **{key: cell[key] for key in ("swept",) if cell.get(key)}, **place})
    except RequestError as error:
        reasons = [error.message, *error.reasons]
        return Record({"attention": Path(run).name, **cell, **place, "status": "failed", "reasons": reasons})
