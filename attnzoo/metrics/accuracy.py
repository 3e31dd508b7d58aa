"""The share of right answers, of tasks that have a chance level."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnzoo.components import register
from attnzoo.metrics.base import Metric
from attnzoo.shapes import IGNORE

if TYPE_CHECKING:
    from torch import Tensor

    from attnzoo.tasks import Batch, Task


@register("val_accuracy")
class Accuracy(Metric):
    """Share of the scored tokens whose target has the largest logit; tables show it in the column of its task."""

    source = "attnzoo"
    title, unit, better, decimals = "accuracy", "acc.", "high", 2
    shown = "record"

    @classmethod
    def applies(cls, task: Task) -> bool:
        return task.chance is not None

    def update(self, logits: Tensor, batch: Batch) -> None:
        right = logits.argmax(-1) == batch.targets  # never equal where the target is IGNORE
        self.add(right=right.sum(), scored=(batch.targets != IGNORE).sum())

    def value(self) -> float:
        return self.total("right") / max(self.total("scored"), 1)

    @classmethod
    def said(cls, value: float) -> str:
        return f"validation accuracy {value:.3f}"
