"""What a model costs: latency, memory, operations, and the record that keeps them. No Hydra, no Lightning here."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Record": "record",
    "config_hash": "record",
    "resolve_device": "environment",
    "resolve_precision": "environment",
    "Timing": "latency",
    "take_turns": "latency",
    "interval_of_median": "interval",
    "peak_memory": "memory",
    "train_step_memory": "memory",
    "model_costs": "cost",
    "train_step_flops": "cost",
    "time_models": "cost",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'attnzoo.measure' has no attribute {name!r}")
    return getattr(importlib.import_module(f"attnzoo.measure.{_HOME[name]}"), name)
