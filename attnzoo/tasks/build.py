"""A task from its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnzoo import components
from attnzoo.data.config import DataConfig
from attnzoo.data.sources import data_problems
from attnzoo.errors import RequestError
from attnzoo.tasks.config import TaskConfig

if TYPE_CHECKING:
    from attnzoo.tasks.base import Task


def reads_text(cfg: TaskConfig) -> bool:
    """Whether the text of ``data`` has a part in it."""
    return components.declared("task", cfg.name, "reads_text")


def length_faults(cfg: TaskConfig, path: str = "task") -> list[str]:
    """Why the task cannot be posed at this length; its options may say so too, by ``length_faults(n_tokens)``."""
    least = components.declared("task", cfg.name, "least_tokens")
    if cfg.n_tokens < least:
        return [f"{path}.n_tokens={cfg.n_tokens}: {cfg.name} needs at least {least}"]
    options: Any = components.read_options("task", cfg.name, cfg.options, f"{path}.")[0]
    found = options.length_faults(cfg.n_tokens) if hasattr(options, "length_faults") else []
    return [f"{path}.{each}" for each in found]


def task_problems(cfg: TaskConfig, data: DataConfig, seed: int = 0) -> list[str]:
    """Every reason why the task cannot be built, as far as it shows without loading the text; [] = it can."""
    problems = [] if 0 <= seed < 2**64 else [f"seed={seed}: must be between 0 and 2**64 - 1"]
    if cfg.name not in components.names("task"):
        return [*problems, components.unknown_component("task", cfg.name)]
    if cfg.validation_rows < 1:
        problems.append(f"task.validation_rows={cfg.validation_rows}: must be at least 1")
    faults = components.read_options("task", cfg.name, cfg.options, "task.")[1]
    text = data_problems(data) if reads_text(cfg) else []
    return [*problems, *length_faults(cfg), *faults, *text]


def build_task(cfg: TaskConfig, data: DataConfig, seed: int) -> Task:
    """The task, ready to give batches.

    Raises:
        RequestError: every reason at once, before any text is tokenized.
    """
    if problems := task_problems(cfg, data, seed):
        raise RequestError(f"the task {cfg.name!r} cannot be built", problems)
    cls = components.get("task", cfg.name)
    task = cls(
        components.parse("task", cfg.name, cfg.options), n_tokens=cfg.n_tokens, seed=seed,
        n_validation_rows=cfg.validation_rows,
    )  # fmt: skip
    task.prepare(data)
    return task
