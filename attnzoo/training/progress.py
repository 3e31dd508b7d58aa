"""What a person sees while a model trains: one bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from lightning import Callback, Trainer

from attnzoo import components
from attnzoo.training.callbacks import due
from attnzoo.training.module import TrainingModule


def summary(values: dict[str, float]) -> str:
    """'loss 1.873 nats · validation 2.642 bits/byte · 35,120 tokens/s' from what has been measured so far.

    >>> from attnzoo.metrics import accuracy
    >>> summary({"train_loss_nats": 1.8731, "val_accuracy": 0.25, "tokens_per_s": 35120.4})
    'loss 1.873 nats · validation accuracy 0.250 · 35,120 tokens/s'
    """
    known = components.registered("metric")
    parts = [f"loss {values['train_loss_nats']:.3f} nats"] if "train_loss_nats" in values else []
    parts += [known[key].said(value) for key, value in values.items() if key in known and known[key].in_progress]
    parts += [f"{values['tokens_per_s']:,.0f} tokens/s"] if "tokens_per_s" in values else []
    return " · ".join(parts)


class Lines(Callback):
    """A line on standard error at some ten of the log steps."""

    def __init__(self, title: str) -> None:
        self.title = title

    def on_train_batch_end(self, trainer: Trainer, module: TrainingModule, *_: Any) -> None:  # type: ignore[override]
        step, last, log_every = trainer.global_step, module.cfg.max_steps, max(module.cfg.log_every, 1)
        if due(step, log_every * max(1, last // (10 * log_every)), last):
            print(f"{self.title}: step {step}/{last} · {summary(module.latest)}", file=sys.stderr, flush=True)


class Bar(Callback):
    """A progress bar on standard error."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(
            *columns, TextColumn("{task.fields[numbers]}"), console=Console(stderr=True), refresh_per_second=4
        )
        self.title = title

    def on_train_start(self, trainer: Trainer, module: TrainingModule) -> None:  # type: ignore[override]
        self.id = self.bar.add_task(self.title, total=module.cfg.max_steps, completed=trainer.global_step, numbers="")
        self.bar.start()

    def on_train_batch_end(self, trainer: Trainer, module: TrainingModule, *_: Any) -> None:  # type: ignore[override]
        self.bar.update(self.id, completed=trainer.global_step, numbers=summary(module.latest))

    def on_train_end(self, *_: Any) -> None:
        self.bar.stop()

    def on_exception(self, *_: Any) -> None:
        self.bar.stop()


def progress(title: str) -> Callback:
    """A bar where a person looks on, lines where the output goes to a file."""
    return Bar(title) if sys.stderr.isatty() else Lines(title)
