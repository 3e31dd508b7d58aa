"""The cells of a comparison, and what an earlier start has already done of them. No torch here."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from attnzoo.errors import RequestError
from attnzoo.files import read_json, write_json_atomic
from attnzoo.measure.record import Record, config_hash
from attnzoo.model.config import hybrid_parts
from attnzoo.training.config import AttentionConfig, CompareConfig, RunConfig, to_dict

PLAN = "comparison.json"
FINISHED = ("ok", "refused", "oom")
"""A cell that ended so is kept; one that failed or was interrupted is done again."""

_MAY_CHANGE = ("backends", "seeds", "jobs", "baseline", "options", "attention", "seed", "run_dir", "logger")


@dataclass(frozen=True)
class Cell:
    """One run of a comparison: a backend with a seed, in a folder of its own."""

    run: str
    cfg: RunConfig

    @property
    def folder(self) -> Path:
        return Path(self.cfg.run_dir)

    @property
    def hash(self) -> str:
        return config_hash(to_dict(self.cfg))

    def finished(self) -> Record | None:
        """The record of an earlier start, where it ended and was of this very configuration."""
        path = self.folder / "record.json"
        if not path.is_file():
            return None
        record = Record.load(path)
        return record if record["status"] in FINISHED and record.get("config_hash") == self.hash else None


def plan(cfg: CompareConfig) -> list[Cell]:
    """Every backend with every seed, seeds together.

    Raises:
        RequestError: the folder is a file or holds a comparison with other common settings, each difference named.
    """
    folder = Path(cfg.run_dir).expanduser()
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"run_dir={folder} is a file, a folder is needed")
    _check_same(cfg, folder)
    return [_cell(cfg, folder, name, seed) for name in cfg.backends for seed in cfg.seeds]


def write_plan(cfg: CompareConfig, cells: list[Cell]) -> None:
    """Put ``comparison.json`` into the folder: what is to be done, so that a later start and the report know."""
    path = Path(cfg.run_dir).expanduser() / PLAN
    before = read_json(path) if path.is_file() else {}
    write_json_atomic(
        path,
        {
            **{key: before[key] for key in ("time",) if key in before},
            "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "config": to_dict(cfg),
            "cells": [
                {"run": cell.run, "attention": cell.cfg.attention.name, "seed": cell.cfg.seed, "config_hash": cell.hash}
                for cell in cells
            ],
        },
    )


def write_time(cfg: CompareConfig, parts: dict[str, float]) -> None:
    """Put where the time of this start went into ``comparison.json``; a start that did nothing leaves it alone."""
    path = Path(cfg.run_dir).expanduser() / PLAN
    write_json_atomic(path, read_json(path) | {"time": parts})


def _cell(cfg: CompareConfig, folder: Path, name: str, seed: int) -> Cell:
    run, model, members = f"{name}-seed{seed}", cfg.model, hybrid_parts(name)
    if len(members) > 1:
        options = {member: given for member in dict.fromkeys(members) if (given := _options(cfg, member))}
        model = replace(model, attention_pattern=members, attention_options=options)
    shared: dict[str, Any] = {f.name: getattr(cfg, f.name) for f in fields(RunConfig)}
    shared |= {
        "attention": AttentionConfig(name, {} if len(members) > 1 else _options(cfg, name)),
        "model": model,
        "seed": seed,
        "run_dir": str(folder / run),
        "trainer": replace(cfg.trainer, progress=False),
        "measure": replace(cfg.measure, timing=False),
        "logger": replace(cfg.logger, group=cfg.logger.group or folder.name, name=run),
    }
    return Cell(run, RunConfig(**shared))


def _options(cfg: CompareConfig, name: str) -> dict[str, Any]:
    """What was asked for this backend, alone or as a member of a hybrid."""
    mine = cfg.attention.options if cfg.attention.name == name else {}
    return dict(cfg.options.get(name) or mine)


def _check_same(cfg: CompareConfig, folder: Path) -> None:
    """Refuse to mix cells that were trained under different common settings in one table."""
    path = folder / PLAN
    if not path.is_file():
        return
    there, asked = _common(read_json(path).get("config", {})), _common(to_dict(cfg))
    differ = [
        f"{key}: there {there.get(key)}, asked for {asked.get(key)}"
        for key in sorted({*there, *asked})
        if there.get(key) != asked.get(key)
    ]
    if differ:
        raise RequestError(f"run_dir={folder} holds another comparison; choose another folder or remove it", differ)


def _common(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if not prefix and key in _MAY_CHANGE:
            continue
        flat |= _common(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return {key: value for key, value in flat.items() if key not in ("trainer.progress", "trainer.resume")}
