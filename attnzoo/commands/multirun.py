"""``attnzoo train -m``: every combination of the swept values, one run after another, each in a fresh process."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnzoo import groups
from attnzoo.composition import parse_overrides
from attnzoo.config import compose
from attnzoo.errors import RequestError
from attnzoo.measure.record import Record
from attnzoo.training.config import RunConfig, to_yaml


def run_all(overrides: Sequence[str], folders: Sequence[str] = (), *, show: bool = False) -> int:
    """Run all jobs to their end, whatever becomes of one; 1 if any did not end well.

    Raises:
        RequestError: every fault of every job, before the first one starts.
    """
    jobs = expand(overrides)
    configs = compose_all(jobs, folders, load_backends=not show)
    if show:
        print("---\n".join(to_yaml(cfg) for cfg in configs), end="")
        return 0
    statuses = [_run(n, len(jobs), job, folders) for n, job in enumerate(jobs, 1)]
    for job, cfg, status in zip(jobs, configs, statuses, strict=True):
        print(f"{_verdict(cfg, status):<9} {' '.join(job)}  {cfg.run_dir}")
    return int(any(statuses))


def expand(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each job, the last swept key turning fastest, as Hydra's own sweeper orders them.

    >>> expand(["attention=exact,linear", "seed=range(2)", "model=tiny"])[1]
    ['attention=exact', 'seed=1', 'model=tiny']
    """
    found: list[str] = []
    parsed = parse_overrides(overrides, found)
    axes = [_values(override, found) for override in parsed]
    if found:
        raise RequestError("these runs cannot be started", found)
    swept = [n for n, override in enumerate(parsed) if override.is_sweep_override()]
    jobs = [list(job) for job in itertools.product(*axes)]
    folder = [n for n, override in enumerate(parsed) if override.key_or_group == "run_dir" and n not in swept]
    if swept and folder:  # runs that share a named folder get one of their own inside it
        base = str(parsed[folder[-1]].value()).replace("'", "\\'")
        for job in jobs:
            name = re.sub(r"[^\w.=+-]+", "-", "_".join(job[n] for n in swept))
            job[folder[-1]] = f"run_dir='{base}/{name}'"
    return jobs


def compose_all(jobs: Sequence[Sequence[str]], folders: Sequence[str], *, load_backends: bool) -> list[RunConfig]:
    """The configuration of each job; the faults of all of them in one error."""
    configs, found = [], []
    for job in jobs:
        try:
            configs.append(compose("train", job, folders=folders, load_backends=load_backends))
        except RequestError as error:
            found += error.reasons or [error.message]
    if found:
        raise RequestError("these runs cannot be started", list(dict.fromkeys(found)))
    shared = {cfg.run_dir for cfg in configs if [c.run_dir for c in configs].count(cfg.run_dir) > 1}
    if shared:
        raise RequestError(
            "these runs cannot be started", [f"several runs would share {path}" for path in sorted(shared)]
        )
    return configs


def _values(override: Any, found: list[str]) -> list[str]:
    if not override.is_sweep_override():
        return [override.input_line]
    key = override.get_key_element()
    value = override.value()
    if hasattr(value, "filter"):  # glob(*)
        return [f"{key}={name}" for name in value.filter(groups.choices(override.key_or_group))]
    if not override.is_discrete_sweep():
        found.append(f"{override.input_line}: name the values, as in {key}=1,2,3 or {key}=range(1,4)")
        return []
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def _run(n: int, total: int, job: Sequence[str], folders: Sequence[str]) -> int:
    print(f"[{n}/{total}] attnzoo train {' '.join(job)}", flush=True)
    more = [word for folder in folders for word in ("--config-dir", folder)]
    child = subprocess.Popen([sys.executable, "-m", "attnzoo", "train", *job, *more])
    try:
        return child.wait()
    except KeyboardInterrupt:  # the child got it too: let it write its record
        child.wait()
        raise


def _verdict(cfg: RunConfig, status: int) -> str:
    """'ok', or what the record says; a process that died left none."""
    if status == 0:
        return "ok"
    file = Path(cfg.run_dir).expanduser() / "record.json"
    said = Record.load(file)["status"] if file.is_file() else "failed"
    return said if said != "ok" else "failed"
