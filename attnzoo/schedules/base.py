"""What every schedule gives: a factor of the learning rate for each step. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from attnzoo.arguments import NOT_BELOW_ZERO, bounded, demand
from attnzoo.components import Component
from attnzoo.options import Options


class Schedule(Component):
    """The learning rate over the steps. One writes `factor`; its settings are ``self.options``."""

    kind: ClassVar[str] = "schedule"

    def __init__(self, options: Options) -> None:
        self.options: Any = options

    def factor(self, step: int, max_steps: int) -> float:
        """Of the learning rate at ``step`` of ``max_steps``; the first step is 0. A pure function: a run that goes on asks for
        the step it has reached alone."""
        raise NotImplementedError(f"{type(self).__name__} gives no factor")


@dataclass(frozen=True)
class WarmupOptions(Options):
    """warmup_steps: over which the learning rate rises linearly from near 0."""

    warmup_steps: int = 20

    def __post_init__(self) -> None:
        demand("these options make no sense", self.faults())

    def faults(self) -> list[str]:
        return bounded("warmup_steps", self.warmup_steps, *NOT_BELOW_ZERO)

    def warmup(self, step: int) -> float:
        """Its factor at ``step``: 1 from step ``warmup_steps`` on."""
        return min(1.0, (step + 1) / (self.warmup_steps + 1))
