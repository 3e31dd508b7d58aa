"""The training data as a function of the step, which is what makes a resumed run equal an uninterrupted one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnzoo.shapes import IGNORE
from attnzoo.tasks import Batch, Task


@dataclass
class Window:
    """The micro-batches of one optimiser step; ``n_scored`` targets in all, over which the loss is the mean."""

    batches: list[Batch]
    n_scored: int

    @classmethod
    def of(cls, batches: list[Batch]) -> Window:
        return cls(batches, sum(int((b.targets != IGNORE).sum()) for b in batches))

    def to(self, device: torch.device) -> Window:
        return Window([to_device(b, device) for b in self.batches], self.n_scored)


class StepStream:
    """Window t holds batch t of the task, ``batch_size · accumulate`` rows, in ``accumulate`` parts: however a step is divided,
    its rows are the same in the same order.

    Lightning saves ``done``, the windows whose step was taken: one that was drawn and then broken off is drawn again.
    """

    def __init__(self, task: Task, batch_size: int, accumulate: int, max_steps: int) -> None:
        self.task, self.batch_size, self.accumulate, self.max_steps = task, batch_size, accumulate, max_steps
        self.next_step = self.done = 0

    def window(self, step: int) -> Window:
        whole = self.task.train_batch(step, self.batch_size * self.accumulate)
        return Window.of([whole.rows(i * self.batch_size, self.batch_size) for i in range(self.accumulate)])

    def __len__(self) -> int:
        return self.max_steps

    def __iter__(self) -> Iterator[Window]:
        while self.next_step < self.max_steps:
            self.next_step += 1
            yield self.window(self.next_step - 1)

    def state_dict(self) -> dict[str, int]:
        return {"next_step": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next_step = self.done = state["next_step"]


def to_device(batch: Batch, device: torch.device | str) -> Batch:
    """The batch with its tensors on ``device``; itself when they are there."""
    if batch.tokens.device == torch.device(device):
        return batch
    parts = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    moved = {name: t.to(device, non_blocking=True) if isinstance(t, Tensor) else t for name, t in parts.items()}
    return dataclasses.replace(batch, **moved)
