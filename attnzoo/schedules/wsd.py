"""Warm-up, stable, decay."""

from __future__ import annotations

from dataclasses import dataclass

from attnzoo.arguments import bounded
from attnzoo.components import register
from attnzoo.schedules.base import Schedule, WarmupOptions


@dataclass(frozen=True)
class WsdOptions(WarmupOptions):
    """decay_fraction: share of the steps, the last ones, over which the learning rate falls."""

    decay_fraction: float = 0.4

    def faults(self) -> list[str]:
        share = bounded("decay_fraction", self.decay_fraction, lambda x: 0 <= x <= 1, "must be between 0 and 1")
        return [*super().faults(), *share]


@register("wsd")
class Wsd(Schedule):
    """1 after the warm-up, then linearly down over the last ``decay_fraction`` of the steps, to 0 one step after the last."""

    source = "https://arxiv.org/abs/2404.06395"
    Options = WsdOptions
    options: WsdOptions

    def factor(self, step: int, max_steps: int) -> float:
        decay_steps = max(1.0, self.options.decay_fraction * max_steps)
        return min(self.options.warmup(step), (max_steps - step) / decay_steps)
