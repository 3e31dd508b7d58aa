"""What happens around the steps: the stop at a NaN, numbers, validation, checkpoints, in this order."""

from __future__ import annotations

import io
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from attnzoo.errors import RequestError
from attnzoo.files import write_bytes_atomic
from attnzoo.tasks import Task
from attnzoo.training.config import TrainerConfig
from attnzoo.training.evaluate import evaluate
from attnzoo.training.module import TrainingModule


def tokens_seen(step: int, cfg: TrainerConfig, task: Task) -> int:
    """Input tokens in the first ``step`` steps."""
    return step * cfg.accumulate * cfg.batch_size * task.n_tokens


def publish(trainer: Trainer, module: TrainingModule, values: dict[str, float]) -> None:
    """Give every logger these numbers at the current step, on the tokens axis."""
    step = trainer.global_step
    values = {"tokens": tokens_seen(step, module.cfg, module.stream.task), **values}
    module.latest.update(values)
    for logger in trainer.loggers:
        logger.log_metrics(values, step)


def due(step: int, every: int, last: int) -> bool:
    """At every ``every``-th step and at the last one."""
    return step == last or (every > 0 and step % every == 0)


class StopAtNonFinite(Callback):
    """Ends a run whose loss or gradients are not finite, naming the layer. On a GPU, at log steps only."""

    def on_train_batch_end(self, trainer: Trainer, module: TrainingModule, *_: Any) -> None:  # type: ignore[override]
        if module.device.type == "cpu" or due(trainer.global_step, module.cfg.log_every, module.cfg.max_steps):
            module.assert_finite()


class StepNumbers(Callback):
    """Every ``log_every`` steps: mean loss, gradient norm, learning rate, throughput, memory.

    The step time is the loop's, validation and checkpoints left out; the latency of the record is measured elsewhere.
    """

    def __init__(self) -> None:
        self.started, self.busy, self.steps = 0.0, 0.0, 0

    def on_train_batch_start(self, *_: Any) -> None:
        self.started = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, module: TrainingModule, *_: Any) -> None:  # type: ignore[override]
        step, cfg = trainer.global_step, module.cfg
        log = due(step, cfg.log_every, cfg.max_steps)
        numbers = module.take_loss() if log else {}  # waits for the device, before the clock is read
        self.busy += time.perf_counter() - self.started
        self.steps += 1
        if log:
            tokens = tokens_seen(self.steps, cfg, module.stream.task)
            numbers |= {"tokens_per_s": tokens / self.busy, "step_ms": 1e3 * self.busy / self.steps}
            publish(trainer, module, numbers | peak_memory(module.device))
            self.busy, self.steps = 0.0, 0


class Validation(Callback):
    """Quality over tokens: scores the validation split every ``eval_every`` steps and at the end; keeps the curve."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.curve: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Trainer, module: TrainingModule, *_: Any) -> None:  # type: ignore[override]
        step, cfg = trainer.global_step, module.cfg
        if due(step, cfg.eval_every, cfg.max_steps):
            quality = evaluate(module.model, self.task, cfg.batch_size, precision=module.precision)
            self.curve.append({"step": step, "tokens": tokens_seen(step, cfg, self.task), **quality})
            publish(trainer, module, quality)

    def state_dict(self) -> dict[str, Any]:
        return {"curve": self.curve}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.curve = list(state["curve"])


class RandomState(Callback):
    """Saves the global random states with a checkpoint and restores them before the first step: dropout goes on."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.saved: dict[str, Any] | None = None

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        if self.saved is None:
            torch.manual_seed(self.seed)  # also CUDA
            random.seed(self.seed)
            return
        torch.set_rng_state(self.saved["torch"].cpu())
        version, internal, gauss = self.saved["python"]
        random.setstate((version, tuple(internal), gauss))
        if torch.cuda.is_available() and self.saved["cuda"]:
            torch.cuda.set_rng_state_all([state.cpu() for state in self.saved["cuda"]])

    def state_dict(self) -> dict[str, Any]:
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return {"torch": torch.get_rng_state(), "cuda": cuda, "python": random.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.saved = state


class Checkpoints(Checkpoint):
    """``last.ckpt`` every ``checkpoint_every`` steps and at the end. Lightning calls a `Checkpoint` after the others.

    Lightning's ModelCheckpoint, under manual optimisation, may save the parameters from before the step.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Trainer, module: TrainingModule, *_: Any) -> None:  # type: ignore[override]
        if due(trainer.global_step, module.cfg.checkpoint_every, module.cfg.max_steps):
            module.assert_finite()
            trainer.save_checkpoint(self.path)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoints that are there whole or not at all: written beside, then moved. Read without pickled code."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_bytes_atomic(path, buffer.getvalue())

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = True) -> dict[str, Any]:
        return read_checkpoint(path)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A resumable checkpoint, on the CPU.

    Raises:
        RequestError: it is missing, cut short, or holds something else.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        missing = {"state_dict", "optimizer_states", "loops", "global_step"} - set(checkpoint)
    except Exception as error:  # torch raises whatever its zip and pickle readers meet in a broken file
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RequestError(f"checkpoint {path} cannot be read: {line}") from error
    if missing:
        raise RequestError(f"{path} is no training checkpoint: it lacks {', '.join(sorted(missing))}")
    return checkpoint


def peak_memory(device: torch.device) -> dict[str, float]:
    """What the whole process took at most so far: bytes allocated on the GPU, or resident on the CPU."""
    if device.type == "cuda":
        return {"peak_memory_bytes": torch.cuda.max_memory_allocated(device)}
    unit = 1 if sys.platform == "darwin" else 1024
    return {"process_peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
