"""What a model costs: latency, memory, operations, and the record that keeps them. No Hydra, no Lightning here."""

from __future__ import annotations

from attnzoo.lazy import at_first_use

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
__getattr__ = at_first_use(__name__, _HOME)
