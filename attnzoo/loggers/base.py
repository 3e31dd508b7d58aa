"""What every logger gives. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from attnzoo.components import Component
from attnzoo.options import Options


class Logger(Component):
    """Takes the numbers of a run while it trains, beside ``metrics.jsonl``, which is always written.

    ``start`` once, then ``log`` for each step that has numbers, ``finish`` once. An interrupted run that is gone on with calls
    ``start`` again, of a new instance with the same folder; a step that an earlier start has handed over does not come again,
    and one that was never handed over, as to a logger that joins later, comes then. What is raised stands in the record's
    warnings: training goes on, and the logger gets no more of this start.
    """

    kind: ClassVar[str] = "logger"

    def __init__(self, options: Options) -> None:
        self.options = options

    @classmethod
    def why_not(cls) -> list[str]:
        """Every reason why it cannot be used here, such as a missing package; [] = it can. Asked before anything starts."""
        return []

    def start(self, folder: Path, config: dict[str, Any]) -> None:
        """A run begins or goes on.

        Args:
            folder: of the run; write below it.
            config: all settings, as in ``config.yaml``, without secrets.
        """

    def log(self, step: int, numbers: dict[str, float]) -> None:
        """The numbers of a step, as a line of ``metrics.jsonl`` has them: tokens, train_loss_nats, metrics by name, …; NaN and
        infinities stay what they are. It comes when the step is complete: with the next step's, or at the end."""
        raise NotImplementedError(f"{type(self).__name__} has no log")

    def finish(self, record: dict[str, Any]) -> None:
        """This start has ended, however it did; ``record`` is what ``record.json`` holds."""

    @classmethod
    def definition_faults(cls) -> list[str]:
        return [*super().definition_faults(), *(["it has no log"] if cls.log is Logger.log else [])]
