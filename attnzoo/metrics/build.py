"""The metrics of a run: those that every run has, then those that were asked for. No torch here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attnzoo import components, declarations, options
from attnzoo.metrics.base import Metric, declaration

if TYPE_CHECKING:
    from attnzoo.measure.config import MeasureConfig
    from attnzoo.tasks import Task

ALWAYS = ("val_bits_per_byte", "val_loss_nats", "val_perplexity", "val_accuracy")
"""Measured of every run whose task they mean something for; in the order of the columns."""

MakeMetrics = Callable[["Task"], list[Metric]]


def build_metrics(task: Task, extra: Sequence[str] = (), given: Mapping[str, Any] | None = None) -> list[Metric]:
    """Fresh metrics for one scoring of the task's validation split.

    Args:
        extra: names beside `ALWAYS`.
        given: options of any of them.
    """
    made = []
    for name in dict.fromkeys([*ALWAYS, *extra]):
        cls = components.get("metric", name)
        if cls.applies(task):
            known = options.names(cls.Options, "metric")
            mine = {key: value for key, value in (given or {}).items() if key in known}
            made.append(cls(components.parse("metric", name, mine), task))
    return made


def asked_for(measure: MeasureConfig) -> MakeMetrics:
    """What makes the metrics of a run with these settings."""
    return partial(build_metrics, extra=measure.metrics, given=measure.options)


def added(measure: MeasureConfig) -> list[str]:
    """The metrics that a person has asked for beside `ALWAYS`."""
    return [name for name in dict.fromkeys(measure.metrics) if name not in ALWAYS]


def pointless(measure: MeasureConfig, task: Task) -> list[str]:
    """The metrics asked for that mean nothing for the task, as faults."""
    return [
        f"measure.metrics: {name} does not apply to the task {task.name}"
        for name in added(measure)
        if not components.get("metric", name).applies(task)
    ]


def always() -> dict[str, dict[str, Any]]:
    """Name -> `declaration` of `ALWAYS`; neither torch nor a plug-in is imported for it."""
    home = declarations.registered("attnzoo.metrics")
    return {name: declaration(getattr(importlib.import_module(home[name][0]), home[name][1])) for name in ALWAYS}
