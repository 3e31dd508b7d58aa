"""The cells of a comparison, and what an earlier start has already done of them. No torch here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from attnzoo.errors import RequestError
from attnzoo.files import read_json, write_json_atomic
from attnzoo.measure.record import Record, config_hash
from attnzoo.model.config import hybrid_parts
from attnzoo.names import file_name
from attnzoo.redact import redacted, redacted_command
from attnzoo.training.again import LENGTH, flat, flat_settings, hash_as_written, in_the_way
from attnzoo.training.config import AttentionConfig, CompareConfig, LoggerConfig, RunConfig, load_config, to_dict

PLAN = "comparison.json"
TEXT = "data.sha256"
"""Stands in it, of the text that all cells read."""
FINISHED = ("ok", "refused", "oom")
"""A cell that ended so is kept; one that failed or was interrupted goes on from its checkpoint."""

NOT_COMMON = ("run_dir", "logger", "jobs", "time_limit")
"""What a later start in the same folder may set in another way."""
OF_CELLS = (*NOT_COMMON, "backends", "seeds", "baseline", "options", "attention", "seed")
"""Settings that are not common to the cells of a comparison of backends, besides."""


@dataclass(frozen=True)
class Cell:
    """One run of a comparison, in a folder of its own.

    Args:
        run: the folder's name.
        variant: what it is called among the timings; cells that differ in nothing but the seed share it.
        swept: key -> value, of what sets it apart in a sweep, the seed aside.
        timed: whether it takes part in the timing rounds.
    """

    run: str
    cfg: RunConfig
    variant: str
    swept: dict[str, str] = field(default_factory=dict)
    timed: bool = True

    @property
    def folder(self) -> Path:
        return Path(self.cfg.run_dir)

    @property
    def hash(self) -> str:
        return config_hash(to_dict(self.cfg))

    @property
    def starts_over(self) -> bool:
        return self.cfg.trainer.restart

    def is_there(self) -> bool:
        """Whether its folder holds a run that it is, or that it goes on with."""
        return (self.folder / "config.yaml").is_file() and not self.differences()

    def differences(self) -> list[str]:
        """'model.d_model: there 64, asked for 32' of each setting by which the folder's run is another one."""
        if not (self.folder / "config.yaml").is_file():
            return []
        there = load_config(self.folder)
        if config_hash(to_dict(there)) == self.hash:
            return []
        return sorted(in_the_way(flat_settings(there), flat_settings(self.cfg), split=False))

    def finished(self) -> Record | None:
        """The record of an earlier start, where it ended, was of this very configuration, and is not to be done again."""
        path = self.folder / "record.json"
        if self.starts_over or not path.is_file():
            return None
        record = Record.load(path)
        if record["status"] not in FINISHED:
            return None
        return record if record.get("config_hash") == self.hash or self._is_of_before(record) else None

    def _is_of_before(self, record: Record) -> bool:
        """Whether a version with fewer settings wrote it, of which those there are the same."""
        if not (self.folder / "config.yaml").is_file() or flat_settings(load_config(self.folder)) != flat_settings(
            self.cfg
        ):
            return False
        return record.get("config_hash") == hash_as_written(self.folder)


@dataclass(frozen=True)
class Plan:
    """What is to be done in one folder.

    Args:
        common: dotted settings that a later start in the same folder must have too.
        jobs: cells trained at once.
        baseline: the variant that ratios refer to.
        time_limit: seconds a cell may take, None for as long as it wants.
    """

    folder: Path
    cells: list[Cell]
    common: dict[str, Any]
    jobs: int
    baseline: str
    time_limit: float | None = None

    @property
    def logger(self) -> LoggerConfig:
        return self.cells[0].cfg.logger


def plan(cfg: CompareConfig) -> Plan:
    """Every backend with every seed, seeds together.

    Raises:
        RequestError: the folder is a file or holds a comparison with other common settings, each difference named.
    """
    folder = Path(cfg.run_dir).expanduser()
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"run_dir={folder} is a file, a folder is needed")
    common = {"swept": [], **flat(to_dict(cfg), leave_out=OF_CELLS)}
    check_same(folder, common)
    cells = _apart([_cell(cfg, folder, name, seed) for name in cfg.backends for seed in cfg.seeds])
    check_cells(folder, cells)
    return Plan(folder, cells, common, cfg.jobs, cfg.baseline, cfg.time_limit)


def write_plan(plan: Plan) -> None:
    """Put ``comparison.json`` into the folder: what is to be done, so that a later start and the report know."""
    path = plan.folder / PLAN
    before = read_plan(plan.folder)
    write_json_atomic(
        path,
        {
            **{key: before[key] for key in ("time",) if key in before},
            "command": redacted_command(sys.argv),
            "common": redacted(plan.common),
            "cells": [
                {
                    "run": cell.run,
                    "attention": cell.cfg.attention.name,
                    "seed": cell.cfg.seed,
                    "swept": redacted(cell.swept),
                    "config_hash": cell.hash,
                }
                for cell in plan.cells
            ],
        },
    )


def write_time(folder: Path, parts: dict[str, float]) -> None:
    """Put where the time of this start went into ``comparison.json``; a start that did nothing leaves it alone."""
    path = folder / PLAN
    write_json_atomic(path, read_plan(folder) | {"time": parts})


def read_plan(folder: Path) -> dict[str, Any]:
    """The content of ``comparison.json``; empty where there is none.

    Raises:
        RequestError: it cannot be read, or holds no plan.
    """
    path = folder / PLAN
    read = read_json(path) if path.is_file() else {}
    if not isinstance(read, dict) or not isinstance(read.get("common", {}), dict):
        raise RequestError(f"{path} is no plan of a comparison: remove it, or choose another folder")
    return read


def common_settings(folder: Path, text: str = "") -> dict[str, Any]:
    """What all cells of a comparison in a folder have in common; empty where there is none, or where they read another text.

    Args:
        text: the SHA-256 of the text that is asked for, where it is known.
    """
    common = {TEXT: text, **read_plan(folder).get("common", {})}
    return {} if text not in ("", common.pop(TEXT)) else common


def more_steps(plan: Plan) -> str:
    """Said where a comparison of fewer steps goes on; '' where none does."""
    before, asked = common_settings(plan.folder).get(LENGTH), plan.common.get(LENGTH)
    if before == asked or None in (before, asked):
        return ""
    ended = f"which ended at {before} before (another run_dir trains from the beginning)"
    return f"{plan.folder}: goes on to {LENGTH}={asked}, {ended}"


def _cell(cfg: CompareConfig, folder: Path, name: str, seed: int) -> Cell:
    run, model, members = file_name(f"{name}-seed{seed}", keep_case=True), cfg.model, hybrid_parts(name)
    if len(members) > 1:
        options = {member: given for member in dict.fromkeys(members) if (given := _options(cfg, member))}
        model = replace(model, attention_pattern=members, attention_options=options)
    attention = AttentionConfig(name, {} if len(members) > 1 else _options(cfg, name))
    own = cell_config(cfg, folder, run, attention=attention, model=model, seed=seed)
    return Cell(run, own, name, timed=is_timed(cfg))


def _apart(cells: list[Cell]) -> list[Cell]:
    """Cells whose names differ in capital letters alone get names that any file system keeps apart."""
    folded = [cell.run.lower() for cell in cells]
    apart = []
    for cell in cells:
        run = file_name(cell.run)
        if run != cell.run and folded.count(cell.run.lower()) > 1 and not cell.is_there():
            cell = replace(cell, run=run, cfg=cell_config(cell.cfg, cell.folder.parent, run))
        apart.append(cell)
    return apart


def cell_config(cfg: RunConfig, folder: Path, run: str, **own: Any) -> RunConfig:
    """The settings of one cell: those that were asked for, in a folder of its own, timed with the others afterwards."""
    shared: dict[str, Any] = {f.name: getattr(cfg, f.name) for f in fields(RunConfig)} | own
    shared |= {
        "run_dir": str(folder / run),
        "trainer": replace(cfg.trainer, progress=False, resume=False),  # it goes on anyway
        "measure": replace(cfg.measure, timing=False),
        "logger": replace(cfg.logger, group=cfg.logger.group or folder.name, name=run),
    }
    return RunConfig(**shared)


def is_timed(cfg: RunConfig) -> bool:
    """Whether timing rounds were asked for."""
    return cfg.measure.enabled and cfg.measure.timing


def _options(cfg: CompareConfig, name: str) -> dict[str, Any]:
    """What was asked for this backend, alone or as a member of a hybrid."""
    mine = cfg.attention.options if cfg.attention.name == name else {}
    return dict(cfg.options.get(name) or mine)


def check_same(folder: Path, asked: dict[str, Any]) -> None:
    """Refuse to mix cells that were trained under different common settings in one table.

    A setting that only one of the two has in common is one that varies among the cells of the other.
    """
    path = folder / PLAN
    if not path.is_file():
        return
    there = redacted(read_plan(folder).get("common", {"swept": None}))
    if there.get("swept") == []:  # of backends: a key that is missing is a later one, and has its default
        there = flat(to_dict(CompareConfig(AttentionConfig(""))), leave_out=OF_CELLS) | there
    asked = {key: value for key, value in asked.items() if key in there}
    differ = sorted(in_the_way({key: there[key] for key in asked}, asked, split=False))
    if differ:
        raise RequestError(f"run_dir={folder} holds another comparison; choose another folder or remove it", differ)


def check_cells(folder: Path, cells: Sequence[Cell]) -> None:
    """Refuse to put a cell over one of other settings, unless it is to start over.

    Raises:
        RequestError: each such cell, with what differs.
    """
    found = [f"{cell.run}: {line}" for cell in cells if not cell.starts_over for line in cell.differences()]
    if found:
        remedy = "choose another folder, or trainer.restart=true does these cells again"
        raise RequestError(f"run_dir={folder} holds cells with other settings; {remedy}", found)
