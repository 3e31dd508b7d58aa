"""The optimiser and the schedule of a run."""

from __future__ import annotations

from torch import nn

from attnzoo import components
from attnzoo.optimizers.together import Together, together
from attnzoo.schedules.base import Schedule
from attnzoo.training.config import TrainerConfig


def build_schedule(cfg: TrainerConfig) -> Schedule:
    """How the learning rate changes."""
    return components.make("schedule", cfg.schedule, cfg.options, "trainer.")


def build_optimizer(model: nn.Module, cfg: TrainerConfig) -> Together:
    """What steps the parameters of the model (see `together`)."""
    return together(model, components.make("optimizer", cfg.optimizer, cfg.options, "trainer."))
