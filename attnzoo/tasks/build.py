"""Tasks by name. A new one is a class like `RecallTask`, in its own file, and a line here."""

from __future__ import annotations

from typing import Any

from attnzoo.data.config import DataConfig
from attnzoo.errors import RequestError, unknown
from attnzoo.tasks.base import Task
from attnzoo.tasks.config import TaskConfig
from attnzoo.tasks.recall import RecallTask
from attnzoo.tasks.text import TextTask

TASKS: dict[str, Any] = {"text": TextTask, "recall": RecallTask}


def task_problems(cfg: TaskConfig, data: DataConfig, seed: int = 0) -> list[str]:
    """Every reason why the task cannot be built, as far as it shows without loading the text; [] = it can."""
    problems = [] if 0 <= seed < 2**64 else [f"seed={seed}: must be between 0 and 2**64 - 1"]
    if cfg.name not in TASKS:
        return [*problems, unknown("task", cfg.name, TASKS)]
    return [*problems, *TASKS[cfg.name].problems(cfg, data)]


def build_task(cfg: TaskConfig, data: DataConfig, seed: int) -> Task:
    """The task, ready to give batches.

    Raises:
        RequestError: every reason at once, before any text is tokenized.
    """
    if problems := task_problems(cfg, data, seed):
        raise RequestError(f"the task {cfg.name!r} cannot be built", problems)
    return TASKS[cfg.name].build(cfg, data, seed)
