"""Settings of the tasks. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass
class TaskConfig:
    """What a model is trained on and scored by. A task's own options are further keys of this group.

    Args:
        name: a registered task, such as text (next token of the data) or recall (periodic recall).
        n_tokens: T.
        validation_rows: sequences scored, of tasks that draw them.
    """

    chosen: ClassVar[dict[str, str]] = {"name": "task"}

    name: str = "text"
    n_tokens: int = 256
    validation_rows: int = 64
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class ProbeConfig:
    """A second, synthetic task that a fresh model of the same attention is trained on, beside the text.

    Args:
        enabled: off leaves the run with its main task alone.
        task: the synthetic task.
        max_steps, batch_size: its own training budget, in steps and sequences a step.
        short_conv: width of the causal convolution in the probe's model (see `ModelConfig`).
        n_layers, d_model, n_heads: of the probe's model.
        optimizer, learning_rate, adamw_lr: as ``trainer``'s optimizer, muon_lr and adamw_lr, for the probe alone. Other
            options of an optimizer are its defaults here.
        precision: fp32, bf16 or auto (see `TrainerConfig`).
    """

    enabled: bool = False
    task: TaskConfig = field(default_factory=lambda: TaskConfig(name="recall", n_tokens=128))
    max_steps: int = 100
    batch_size: int = 16
    short_conv: int = 4
    n_layers: int = 2
    d_model: int = 64
    n_heads: int = 2
    optimizer: str = "muon"
    learning_rate: float = 0.03
    adamw_lr: float = 0.009
    precision: str = "fp32"
