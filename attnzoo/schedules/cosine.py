"""Half a cosine."""

from __future__ import annotations

import math

from attnzoo.components import register
from attnzoo.schedules.base import Schedule, WarmupOptions


@register("cosine")
class Cosine(Schedule):
    """Half a cosine over all steps after the warm-up, to 0 one step after the last."""

    source = "https://arxiv.org/abs/1608.03983"
    Options = WarmupOptions
    options: WarmupOptions

    def factor(self, step: int, max_steps: int) -> float:
        warmup = self.options.warmup_steps
        progress = (step - warmup) / max(1, max_steps - warmup)
        return self.options.warmup(step) * 0.5 * (1 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))
