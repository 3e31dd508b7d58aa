"""Where the wall time of a comparison goes: how much of it is training and measuring. No torch here."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from attnzoo.measure.record import Record

TRAINING, MEASURING = ("train", "probe"), ("leak", "cost")


@dataclass
class Account:
    """Seconds of wall time; with several jobs each has its part of it, and one without a cell left is a free one.

    Args:
        jobs: cells run at once.
        started: `time.monotonic` when the work was asked for.
        timing: seconds of the timing rounds.
        cells: seconds from the first cell's start to the last one's end.
        busy: seconds of every cell's process, added up; ``stages`` those of each stage in them.
    """

    jobs: int
    started: float = field(default_factory=time.monotonic)
    timing: float = 0.0
    cells: float = 0.0
    busy: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)

    def add(self, record: Record, seconds: float) -> None:
        """A cell that has ended."""
        self.busy += seconds
        for stage, spent in record.get("environment", {}).get("stage_seconds", {}).items():
            self.stages[stage] = self.stages.get(stage, 0.0) + spent

    def parts(self) -> dict[str, float]:
        """seconds so far, and their parts: training, measuring, free_jobs, other. The four add up to the first."""
        whole = time.monotonic() - self.started
        training, measuring = (sum(self.stages.get(stage, 0.0) for stage in own) for own in (TRAINING, MEASURING))
        found = {
            "training": training / self.jobs,
            "measuring": measuring / self.jobs + self.timing,
            "free_jobs": max(self.cells - self.busy / self.jobs, 0.0),
        }
        found = {"seconds": whole, **found, "other": whole - sum(found.values())}
        return {name: round(seconds, 2) for name, seconds in found.items()}


def account_line(parts: dict[str, float]) -> str:
    """'400 s: training 60 %, measuring 30 %, jobs without a cell 2 %, all else 8 %'."""
    share = {name: f"{seconds / parts['seconds']:.0%}".replace("%", " %") for name, seconds in parts.items()}
    return (
        f"{parts['seconds']:.0f} s: training {share['training']}, measuring {share['measuring']}, "
        f"jobs without a cell {share['free_jobs']}, all else {share['other']}"
    )
