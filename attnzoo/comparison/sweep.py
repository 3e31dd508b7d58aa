"""The cells of a sweep: every combination of the swept values. No torch here."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from attnzoo import groups
from attnzoo.comparison.plan import NOT_COMMON, Cell, Plan, cell_config, check_cells, check_same, flat, is_timed
from attnzoo.composition import parse_overrides
from attnzoo.config import compose
from attnzoo.errors import RequestError
from attnzoo.training.config import SweepConfig, to_dict

LONGEST = 160  # characters of a folder's name


@dataclass(frozen=True)
class Job:
    """The overrides of one cell, and the swept ones among them."""

    overrides: list[str]
    swept: dict[str, str]

    @property
    def name(self) -> str:
        """Of its folder: 'attention=sdpa_seed=0', whatever the order they were given in."""
        whole = "_".join(f"{key}={value}" for key, value in sorted(self.swept.items()))
        name = re.sub(r"[^\w.=+-]+", "-", whole)
        return name if len(name) <= LONGEST else f"{name[:LONGEST]}-{hashlib.sha256(whole.encode()).hexdigest()[:6]}"


def plan_sweep(overrides: Sequence[str], folders: Sequence[str] = (), *, load_backends: bool = True) -> Plan:
    """Compose and check every cell.

    Raises:
        RequestError: every fault of every cell; or the folder holds something else.
    """
    jobs = expand(overrides)
    configs, found = [], []
    for job in jobs:
        try:
            cfg = compose("sweep", job.overrides, folders=folders, load_backends=load_backends)
            configs.append(cast(SweepConfig, cfg))
        except RequestError as error:
            found += error.reasons or [error.message]
    names = [job.name for job in jobs]
    found += [f"{name} is asked for more than once" for name in names if names.count(name) > 1]
    if not found and len({(cfg.run_dir, cfg.jobs, cfg.time_limit) for cfg in configs}) > 1:
        found.append("all cells need the same run_dir, jobs and time_limit: each gets a folder of its own in that one")
    if found:
        raise RequestError("this sweep cannot be started", list(dict.fromkeys(found)))
    folder = _folder(configs[0], overrides, jobs[0])
    common = {"swept": sorted(jobs[0].swept), **_common(configs)}
    check_same(folder, common)
    cells = [_cell(cfg, folder, job) for cfg, job in zip(configs, jobs, strict=True)]
    check_cells(folder, cells)
    return Plan(folder, cells, common, configs[0].jobs, cells[0].variant, configs[0].time_limit)


def expand(overrides: Sequence[str]) -> list[Job]:
    """One job a combination, the last swept key turning fastest, as Hydra's own sweeper orders them.

    >>> expand(["attention=exact,linear", "seed=range(2)", "model=tiny"])[1].overrides
    ['attention=exact', 'seed=1', 'model=tiny']

    Raises:
        RequestError: nothing is swept, values that nobody can count, what is no KEY=VALUE.
    """
    found: list[str] = []
    parsed = parse_overrides(overrides, found)
    axes = [_values(override, found) for override in parsed]
    swept = [n for n, override in enumerate(parsed) if override.is_sweep_override()]
    if not swept and not found:
        found.append("no key has several values, as in seed=0,1; attnzoo train runs one")
    if found:
        raise RequestError("this sweep cannot be started", found)
    return [
        Job(
            [f"{parsed[n].get_key_element()}={value}" if n in swept else value for n, value in enumerate(combination)],
            {parsed[n].key_or_group: combination[n] for n in swept},
        )
        for combination in itertools.product(*axes)
    ]


def _values(override: Any, found: list[str]) -> list[str]:
    """The values of a swept key; of another one its whole text."""
    if not override.is_sweep_override():
        return [override.input_line]
    key, value = override.key_or_group, override.value()
    if key.partition(".")[0] in NOT_COMMON:
        found.append(f"{override.input_line}: {key} is one for all cells")
        return []
    if hasattr(value, "filter"):  # glob(*)
        return value.filter(groups.choices(key))
    if not override.is_discrete_sweep():
        found.append(f"{override.input_line}: name the values, as in {key}=1,2,3 or {key}=range(1,4)")
        return []
    return list(override.sweep_string_iterator())


def _cell(cfg: SweepConfig, folder: Path, job: Job) -> Cell:
    swept = {key: value for key, value in job.swept.items() if key != "seed"}
    variant = ", ".join(f"{key}={value}" for key, value in swept.items()) or cfg.attention.name
    return Cell(job.name, cell_config(cfg, folder, job.name), variant, swept, is_timed(cfg))


def _folder(cfg: SweepConfig, overrides: Sequence[str], job: Job) -> Path:
    """The folder that was asked for, else one that more values of the same keys find again."""
    if cfg.run_dir != "auto":
        return Path(cfg.run_dir).expanduser()
    fixed = {text for text in overrides if text in job.overrides and not text.startswith(NOT_COMMON)}
    said = json.dumps([sorted(fixed), sorted(job.swept)])
    return Path(f"runs/sweep-{hashlib.sha256(said.encode()).hexdigest()[:6]}")


def _common(configs: Sequence[SweepConfig]) -> dict[str, Any]:
    """What all cells agree on."""
    first, *others = [flat(to_dict(cfg), leave_out=NOT_COMMON) for cfg in configs]
    return {key: value for key, value in first.items() if all(key in o and o[key] == value for o in others)}
