"""What every metric gives: a title, a unit, which direction is better, and a value from sums over the scored tokens.

No torch is imported here nor at the top of a built-in metric's file: reports read what the classes declare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from attnzoo.components import Component
from attnzoo.options import Options

if TYPE_CHECKING:
    from torch import Tensor

    from attnzoo.tasks import Batch, Task

BETTER = ("low", "high", None)
SHOWN = ("everywhere", "page", "csv", "record")
RESERVED = (
    "curve", "curves", "data", "sample", "task_accuracy", "task_chance", "task_curve", "task_reasons", "by_length",
    "uniform_loss_nats", "val_tokens", "tokens_seen", "step", "tokens", "train_loss_nats", "grad_norm", "lr_factor",
    "loss_scale", "skipped_steps", "tokens_per_s", "step_ms", "peak_memory_bytes", "process_peak_memory_bytes",
)  # fmt: skip
"""Names that stand beside the metrics in ``quality`` of the record or in a line of ``metrics.jsonl``."""


class Metric(Component):
    """A number that tells how well a model predicts the validation split; it stands in the record as ``quality.<name>``.

    One instance scores the split once. `update` adds to ``self.sums`` with `add`, batch by batch; `value` divides them at the
    end, so that the number depends neither on the size of the batches nor on their order.

    Attributes:
        title, unit: of the shown number, in a column of at most some 12 characters.
        better: "low", "high", or None when neither direction is.
        decimals: of the shown number.
        shown: everywhere (table, page, CSV), page (page and CSV), csv, or record (no column).
        in_progress: whether the progress line shows it.
    """

    kind: ClassVar[str] = "metric"
    title: ClassVar[str]
    unit: ClassVar[str] = ""
    better: ClassVar[Literal["low", "high"] | None] = None
    decimals: ClassVar[int] = 3
    shown: ClassVar[str] = "everywhere"
    in_progress: ClassVar[bool] = True

    def __init__(self, options: Options, task: Task) -> None:
        self.options, self.task = options, task
        self.sums: dict[str, Tensor] = {}

    @classmethod
    def applies(cls, task: Task) -> bool:
        """Whether the metric means something for this task."""
        return True

    def update(self, logits: Tensor, batch: Batch) -> None:
        """Add what a batch contributes.

        Args:
            logits: (B, T, V), in the model's type.
            batch: its targets are (B, T), `IGNORE` where not scored.
        """
        raise NotImplementedError(f"{type(self).__name__} has no update")

    def value(self) -> float:
        """The number, from the sums."""
        raise NotImplementedError(f"{type(self).__name__} has no value")

    def add(self, **amounts: Tensor) -> None:
        """Add to the sums by name, in float64 and without gradients; a sum may have any shape."""
        for name, amount in amounts.items():
            amount = amount.detach().double()
            self.sums[name] = self.sums[name] + amount if name in self.sums else amount

    def total(self, name: str) -> float:
        """A sum as a number; 0 where nothing was added."""
        return float(self.sums[name]) if name in self.sums else 0.0

    @classmethod
    def said(cls, value: float) -> str:
        """The number in the progress line."""
        return f"{cls.title} {value:.{cls.decimals}f} {cls.unit}".rstrip()

    @classmethod
    def definition_faults(cls) -> list[str]:
        faults = super().definition_faults()
        if not isinstance(getattr(cls, "title", None), str) or not cls.title.strip():
            faults.append("it has no title")
        if cls.better not in BETTER:
            faults.append(f"better={cls.better!r}: valid: 'low', 'high', None")
        if cls.shown not in SHOWN:
            faults.append(f"shown={cls.shown!r}: valid: {', '.join(SHOWN)}")
        faults += [f"it has no {name}" for name in ("update", "value") if getattr(cls, name) is getattr(Metric, name)]
        return faults

    @classmethod
    def naming_faults(cls, name: str) -> list[str]:
        return [f"the record has another number called {name!r}"] if name in RESERVED else []


def declaration(cls: type[Metric]) -> dict[str, Any]:
    """What reports need to know of a metric, as plain values: the record holds it of those that are measured on demand."""
    how = " ".join((cls.__doc__ or "").strip().partition("\n\n")[0].split())
    names = ("title", "unit", "better", "decimals", "shown")
    return {**{name: getattr(cls, name) for name in names}, "how": how}
