"""Cross entropy of the validation tokens, and what follows from it; the three share one pass."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attnzoo.components import register
from attnzoo.metrics.base import Metric
from attnzoo.shapes import IGNORE

if TYPE_CHECKING:
    from torch import Tensor

    from attnzoo.tasks import Batch, Task


@register("val_loss_nats")
class Loss(Metric):
    """Mean cross entropy of the validation tokens."""

    source = "attnzoo"
    title, unit, better = "val loss", "nats", "low"
    shown = "csv"
    in_progress = False

    def update(self, logits: Tensor, batch: Batch) -> None:
        from torch.nn import functional as F

        flat, targets = logits.float().flatten(0, 1), batch.targets.flatten()
        nats = F.cross_entropy(flat, targets, ignore_index=IGNORE, reduction="sum")
        self.add(nats=nats, scored=(targets != IGNORE).sum())

    def value(self) -> float:
        return self.total("nats") / max(self.total("scored"), 1)


@register("val_perplexity")
class Perplexity(Loss):
    """exp of the mean cross entropy."""

    title, unit, decimals = "perplexity", "", 2

    def value(self) -> float:
        return math.exp(min(super().value(), 700.0))  # beyond is no float


@register("val_bits_per_byte")
class BitsPerByte(Loss):
    """Validation text, every token scored once, token-weighted; bits per byte is fair across tokenizers."""

    title, unit, shown, in_progress = "bits/byte", "", "everywhere", True

    @classmethod
    def applies(cls, task: Task) -> bool:
        return task.bytes_per_token is not None

    def value(self) -> float:
        assert self.task.bytes_per_token is not None
        return super().value() / math.log(2) / self.task.bytes_per_token

    @classmethod
    def said(cls, value: float) -> str:
        return f"validation {value:.3f} bits/byte"
