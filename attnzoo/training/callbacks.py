"""What happens around the steps: the stop at a NaN, numbers, validation, their log, in this order."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from typing import Any

import torch
from lightning import Callback, Trainer

from attnzoo.errors import Stopped
from attnzoo.measure.latency import synchronize
from attnzoo.metrics.build import MakeMetrics, build_metrics
from attnzoo.tasks import Task
from attnzoo.training.config import TrainerConfig
from attnzoo.training.evaluate import evaluate
from attnzoo.training.module import TrainingModule
from attnzoo.training.stopping import Stopping


def tokens_seen(step: int, cfg: TrainerConfig, task: Task) -> int:
    """Input tokens in the first ``step`` steps."""
    return step * cfg.accumulate * cfg.batch_size * task.n_tokens


def publish(trainer: Trainer, module: TrainingModule, values: dict[str, float]) -> None:
    """These numbers belong to the current step; `Rows` gives all of a step to the loggers at once."""
    tokens = tokens_seen(trainer.global_step, module.cfg, module.stream.task)
    module.row |= {"tokens": tokens, **values}
    module.latest |= module.row


def due(step: int, every: int, last: int) -> bool:
    """At every ``every``-th step and at the last one."""
    return step == last or (every > 0 and step % every == 0)


class StopAtNonFinite(Callback):
    """Ends a run whose loss or gradients are not finite, naming the layer: on a GPU, which is not waited for each step."""

    def on_train_batch_end(self, trainer: Trainer, module: TrainingModule, *_: Any) -> None:  # type: ignore[override]
        if module.device.type != "cpu" and due(trainer.global_step, module.cfg.log_every, module.cfg.max_steps):
            module.assert_finite()


class StepNumbers(Callback):
    """Every ``log_every`` steps: mean loss, gradient norm, learning rate, throughput, memory.

    The step time is that of the clock between two lines, which has the waits for data and the host's own work in it, without
    validation and checkpoints; the latency of the record is measured elsewhere.
    """

    def __init__(self) -> None:
        self.steps = 0

    def on_train_start(self, trainer: Trainer, module: TrainingModule) -> None:  # type: ignore[override]
        module.stopwatch.lap()

    def on_train_batch_end(self, trainer: Trainer, module: TrainingModule, *_: Any) -> None:  # type: ignore[override]
        step, cfg = trainer.global_step, module.cfg
        log = due(step, cfg.log_every, cfg.max_steps)
        numbers = module.take_loss() if log else {}  # waits for the device, before the clock is read
        self.steps += 1
        if log:
            tokens, seconds = tokens_seen(self.steps, cfg, module.stream.task), module.stopwatch.lap()
            numbers |= {"tokens_per_s": tokens / seconds, "step_ms": 1e3 * seconds / self.steps}
            publish(trainer, module, numbers | peak_memory(module.device))
            self.steps = 0


class Validation(Callback):
    """Quality over tokens: scores the validation split every ``eval_every`` steps and at the end; keeps the curve.

    A stop ends the scoring too; the run that goes on from there scores first.
    """

    def __init__(self, task: Task, stop: Stopping, metrics: MakeMetrics = build_metrics) -> None:
        self.task, self.stop, self.metrics = task, stop, metrics
        self.curve: list[dict[str, float]] = []

    def on_train_start(self, trainer: Trainer, module: TrainingModule) -> None:  # type: ignore[override]
        if trainer.global_step:
            self.score(trainer, module)

    def on_train_batch_end(self, trainer: Trainer, module: TrainingModule, *_: Any) -> None:  # type: ignore[override]
        self.score(trainer, module)

    def score(self, trainer: Trainer, module: TrainingModule) -> None:
        """Add the current step to the curve, where it is due and not there."""
        step, cfg = trainer.global_step, module.cfg
        if not due(step, cfg.eval_every, cfg.max_steps) or (self.curve and self.curve[-1]["step"] == step):
            return
        synchronize(str(module.device))
        with module.stopwatch.paused(), suppress(Stopped):
            quality = evaluate(
                module.model, self.task, cfg.batch_size, precision=module.precision, before_batch=self.stop.check,
                metrics=self.metrics,
            )  # fmt: skip
            self.curve.append({"step": step, "tokens": tokens_seen(step, cfg, self.task), **quality})
            publish(trainer, module, quality)

    def state_dict(self) -> dict[str, Any]:
        return {"curve": self.curve}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.curve = list(state["curve"])


class Rows(Callback):
    """Gives the loggers what was published of a step, once."""

    def on_train_start(self, trainer: Trainer, module: TrainingModule) -> None:  # type: ignore[override]
        self.write(trainer, module)

    def on_train_batch_end(self, trainer: Trainer, module: TrainingModule, *_: Any) -> None:  # type: ignore[override]
        self.write(trainer, module)

    def write(self, trainer: Trainer, module: TrainingModule) -> None:
        if module.row:
            for logger in trainer.loggers:
                logger.log_metrics(module.row, trainer.global_step)
            module.row = {}


class EndBetweenSteps(Callback):
    """Ends the loop after the step in which a stop was asked for."""

    def __init__(self, stop: Stopping) -> None:
        self.stop = stop

    def on_fit_start(self, trainer: Trainer, module: Any) -> None:
        self.stop.listen()  # Lightning has just taken SIGTERM

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        trainer.should_stop = self.stop.signum is not None


def peak_memory(device: torch.device) -> dict[str, float]:
    """What the whole process took at most so far: bytes allocated on the GPU, or resident on the CPU."""
    if device.type == "cuda":
        return {"peak_memory_bytes": torch.cuda.max_memory_allocated(device)}
    unit = 1 if sys.platform == "darwin" else 1024
    return {"process_peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
