"""The cells of a sweep: every combination of the swept values. No torch here."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from attnzoo import groups
from attnzoo.comparison.plan import (
    NOT_COMMON,
    Cell,
    Plan,
    cell_config,
    check_cells,
    check_same,
    common_settings,
    is_timed,
)
from attnzoo.composition import parse_overrides
from attnzoo.config import compose, with_files
from attnzoo.data.sources import local_sha256
from attnzoo.errors import RequestError
from attnzoo.measure.record import config_hash
from attnzoo.names import file_name
from attnzoo.redact import redacted
from attnzoo.tasks.build import reads_text
from attnzoo.training.again import auto_folder, flat
from attnzoo.training.config import SweepConfig, to_dict

MOST_CELLS = 2000


@dataclass(frozen=True)
class Job:
    """The overrides of one cell, and the swept ones among them."""

    overrides: list[str]
    swept: dict[str, str]

    @property
    def label(self) -> str:
        """'attention=sdpa_seed=0', whatever the order they were given in."""
        return "_".join(f"{key}={value}" for key, value in sorted(redacted(self.swept).items()))

    @property
    def name(self) -> str:
        """Of its folder."""
        return file_name(self.label)

    @property
    def name_before(self) -> str:
        """What versions before 0.2 called the folder, where other values may have the same name."""
        name = re.sub(r"[^\w.=+-]+", "-", self.label)
        return name if len(name) <= 160 else f"{name[:160]}-{hashlib.sha256(self.label.encode()).hexdigest()[:6]}"


def plan_sweep(overrides: Sequence[str], folders: Sequence[str] = ()) -> Plan:
    """Compose and check every cell.

    Raises:
        RequestError: every fault of every cell; or the folder holds something else.
    """
    unknown: list[str] = []
    overrides = with_files(overrides, "sweep", unknown)
    jobs, found = _jobs(overrides, folders)
    found += unknown
    configs = []
    for job in jobs:
        try:
            cfg = compose("sweep", job.overrides, folders=folders)
            configs.append(cast(SweepConfig, cfg))
        except RequestError as error:
            found += error.reasons or [error.message]
    if not found and len({(cfg.run_dir, cfg.jobs, cfg.time_limit) for cfg in configs}) > 1:
        found.append("all cells need the same run_dir, jobs and time_limit: each gets a folder of its own in that one")
    found += _repeated(jobs, configs if len(configs) == len(jobs) else [])
    if found:
        raise RequestError("this sweep cannot be started", list(dict.fromkeys(found)))
    common = {"swept": sorted(jobs[0].swept), **_common(configs)}
    folder = _folder(configs[0], overrides, jobs[0], common)
    check_same(folder, common)
    cells = [_cell(cfg, folder, job) for cfg, job in zip(configs, jobs, strict=True)]
    check_cells(folder, cells)
    return Plan(folder, cells, common, configs[0].jobs, cells[0].variant, configs[0].time_limit)


def expand(overrides: Sequence[str]) -> list[Job]:
    """One job a combination, the last swept key turning fastest, as Hydra's own sweeper orders them.

    >>> expand(["attention=exact,linear", "seed=range(2)", "model=tiny"])[1].overrides
    ['attention=exact', 'seed=1', 'model=tiny']

    Raises:
        RequestError: nothing is swept, values that nobody can count, none at all or too many, what is no KEY=VALUE.
    """
    jobs, found = _jobs(overrides)
    if found:
        raise RequestError("this sweep cannot be started", found)
    return jobs


def _jobs(overrides: Sequence[str], folders: Sequence[str] = ()) -> tuple[list[Job], list[str]]:
    """The jobs of what can be read, and what is wrong with the rest, which they go without."""
    found: list[str] = []
    parsed = parse_overrides(overrides, found)
    if not any(override.is_sweep_override() for override in parsed) and not found:
        found.append("no key has several values, as in seed=0,1; attnzoo train runs one")
    once = {override.key_or_group: n for n, override in reversed([*enumerate(parsed)])}
    axes = {n: values for n in sorted(once.values()) if (values := _values(parsed[n], folders, found))}
    if (cells := math.prod(map(len, axes.values()))) > MOST_CELLS:
        return [], [*found, f"{cells} combinations are asked for, {MOST_CELLS} at most"]
    swept = [n for n in axes if parsed[n].is_sweep_override()]
    jobs = []
    for combination in itertools.product(*axes.values()):
        chosen = dict(zip(axes, combination, strict=True))
        words = [f"{parsed[n].get_key_element()}={text}" if n in swept else text for n, text in chosen.items()]
        jobs.append(Job(words, {parsed[n].key_or_group: chosen[n] for n in swept}))
    return jobs, found


def _values(override: Any, folders: Sequence[str], found: list[str]) -> list[str]:
    """The values of a swept key, of another one its whole text; none where something is wrong with it."""
    if not override.is_sweep_override():
        return [override.input_line]
    key, value = override.key_or_group, override.value()
    named = f"name the values, as in {key}=1,2,3 or {key}=range(1,4)"
    if key.partition(".")[0] in NOT_COMMON:
        wrong = f"{key} is one for all cells"
    elif hasattr(value, "filter"):  # glob(*)
        choices = groups.choices(key, [Path(folder) for folder in folders])
        if matching := value.filter(choices):
            return matching
        wrong = f"matches none of {', '.join(choices)}" if choices else f"{key} is no group; {named}"
    elif not override.is_discrete_sweep():
        wrong = named
    elif value.shuffle:
        wrong = "shuffled anew at each start; the first combination is what ratios refer to, so name the values in their order"
    elif not (count := _count(value)):
        wrong = f"there is no value in it; {named}"
    elif count > MOST_CELLS:
        wrong = f"these are {count} values, {MOST_CELLS} cells at most"
    else:
        return list(override.sweep_string_iterator())
    found.append(f"{override.input_line}: {wrong}")
    return []


def _count(value: Any) -> int:
    """How many values a choice or a range has, without listing them."""
    if hasattr(value, "list"):
        return len(value.list)
    start, stop, step = value.start or 0, value.stop, value.step
    if stop is None or not step or not all(math.isfinite(number) for number in (start, stop, step)):
        return 0
    return max(math.ceil((stop - start) / step), 0)


def _repeated(jobs: Sequence[Job], configs: Sequence[SweepConfig]) -> list[str]:
    """Cells that are asked for more than once, in the same words or in others for the same values."""
    first: dict[str, Job] = {}
    found = []
    names = [job.label for job in jobs]
    found += [f"{name} is asked for more than once" for name in dict.fromkeys(names) if names.count(name) > 1]
    for job, cfg in zip(jobs, configs, strict=False):
        same = f"{config_hash(to_dict(cfg))} {cfg.data.options.get('paths')} {cfg.data.sha256}"  # of texts the hash knows nothing
        other = first.setdefault(same, job)
        if other.label != job.label:
            found.append(f"{job.label} is the same cell as {other.label}")
    return found


def _cell(cfg: SweepConfig, folder: Path, job: Job) -> Cell:
    swept = {key: value for key, value in job.swept.items() if key != "seed"}
    variant = ", ".join(f"{key}={value}" for key, value in swept.items()) or cfg.attention.name
    cell = Cell(job.name, cell_config(cfg, folder, job.name), variant, swept, is_timed(cfg))
    before = Cell(job.name_before, cell_config(cfg, folder, job.name_before), variant, swept, is_timed(cfg))
    return before if before.run != cell.run and before.is_there() and not cell.folder.exists() else cell


def _folder(cfg: SweepConfig, overrides: Sequence[str], job: Job, common: dict[str, Any]) -> Path:
    """The folder that was asked for, else one that more values of the same keys find again, and more steps too."""
    if cfg.run_dir != "auto":
        return Path(cfg.run_dir).expanduser()
    fixed = {text for text in overrides if text in job.overrides and not text.startswith(NOT_COMMON)}
    said = json.dumps([sorted(fixed), sorted(job.swept)])
    name = f"runs/sweep-{hashlib.sha256(said.encode()).hexdigest()[:6]}"
    text = local_sha256(cfg.data) if reads_text(cfg.task) else ""
    return Path(auto_folder(name, lambda f: common_settings(f, text), common, split=False, whole=cfg.trainer.restart))


def _common(configs: Sequence[SweepConfig]) -> dict[str, Any]:
    """What all cells agree on."""
    first, *others = [flat(to_dict(cfg), leave_out=NOT_COMMON) for cfg in configs]
    return {key: value for key, value in first.items() if all(key in o and o[key] == value for o in others)}
