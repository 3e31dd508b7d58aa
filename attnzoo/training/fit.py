"""Lightning's trainer, set up quietly, and one call that trains."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.plugins.environments import LightningEnvironment

from attnzoo.metrics.build import MakeMetrics, build_metrics
from attnzoo.model import CausalLM
from attnzoo.tasks import Task
from attnzoo.training.callbacks import EndBetweenSteps, Rows, StepNumbers, StopAtNonFinite, Validation, tokens_seen
from attnzoo.training.checkpoints import AtomicCheckpointIO, Checkpoints, RandomState
from attnzoo.training.config import TrainerConfig
from attnzoo.training.module import TrainingModule
from attnzoo.training.progress import progress
from attnzoo.training.stopping import Stopping
from attnzoo.training.stream import StepStream

QUIET_LOGGERS = ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero", "lightning.pytorch")
QUIET_WARNINGS = (
    "GPU available but not used",  # device=cpu was asked for
    "`isinstance\\(treespec, LeafSpec\\)` is deprecated",  # Lightning's own use of torch
)


@dataclass
class Fitted:
    """What training leaves behind besides the model: the validation curve, tokens seen, the last logged numbers, and what
    computed the attention, None where no step was left to take."""

    curve: list[dict[str, float]]
    tokens_seen: int
    latest: dict[str, float]
    kernel: str | None


def fit(
    model: CausalLM,
    task: Task,
    cfg: TrainerConfig,
    *,
    seed: int,
    device: str = "cpu",
    precision: str = "fp32",
    compiled: bool = False,
    loggers: Sequence[Logger] = (),
    checkpoint: Path | None = None,
    resume_from: Path | None = None,
    title: str = "train",
    stop: Stopping | None = None,
    note: Callable[[int, str | None], dict[str, Any]] = lambda step, kernel: {},
    metrics: MakeMetrics = build_metrics,
) -> Fitted:
    """Train ``model`` in place for ``cfg.max_steps`` steps; it ends on ``device``, in evaluation mode.

    Args:
        seed: of dropout; batches come from the task's own seed.
        device, precision, compiled: resolved, not 'auto'.
        checkpoint: where to keep the resumable state; None keeps none.
        resume_from: a checkpoint to go on from, with the same settings, ``max_steps`` aside.
        title: in front of the progress.
        stop: asked between steps whether to end.
        metrics: makes those that validation scores by.
        note: from the step and what computed the attention, what else a checkpoint holds.

    Raises:
        NumericalError: a loss or gradient was not finite.
        Stopped: it was asked to stop; as after any error, the checkpoint is that of the last whole step.
    """
    stop = stop or Stopping()
    stream = StepStream(task, cfg.batch_size, cfg.accumulate, cfg.max_steps)
    module = TrainingModule(model, cfg, stream, precision, compiled)
    validation = Validation(task, stop, metrics)
    callbacks = [RandomState(seed), StopAtNonFinite(), StepNumbers(), validation, Rows(), EndBetweenSteps(stop)]
    callbacks += [progress(title)] if cfg.progress else []
    callbacks += [Checkpoints(checkpoint, stop, note)] if checkpoint else []
    with quiet(), interruptible(), stop.between_steps():
        trainer = Trainer(
            accelerator="gpu" if torch.device(device).type == "cuda" else "cpu",
            devices=[torch.device(device).index or 0] if torch.device(device).type == "cuda" else 1,
            max_steps=cfg.max_steps,
            max_epochs=-1,
            callbacks=callbacks,
            logger=list(loggers) or False,
            plugins=[
                AtomicCheckpointIO(),
                LightningEnvironment(),
                *mixed(precision, device),
            ],  # one process, under Slurm too
            default_root_dir=str(checkpoint.parent) if checkpoint else None,
            enable_checkpointing=checkpoint is not None,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
        )
        path = str(resume_from) if resume_from else None
        trainer.fit(module, train_dataloaders=stream, ckpt_path=path, weights_only=True)
    model.to(device).eval()
    stop.check()
    validation.score(trainer, module)  # where it was stopped after the last step
    return Fitted(validation.curve, tokens_seen(cfg.max_steps, cfg, task), dict(module.latest), module.kernel)


def mixed(precision: str, device: str) -> list[MixedPrecision]:
    """What Lightning is given for a 16-bit type; for fp16 with a scaler of losses. A name would be another type on a CPU."""
    names: dict[str, Any] = {"bf16": "bf16-mixed", "fp16": "16-mixed"}
    return [MixedPrecision(names[precision], torch.device(device).type)] if precision in names else []


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps Lightning's greetings and tips, by name, from the terminal; everything else is shown."""
    levels = {name: logging.getLogger(name).level for name in QUIET_LOGGERS}
    for name in levels:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in QUIET_WARNINGS:
                warnings.filterwarnings("ignore", message=f".*{message}")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C stays the KeyboardInterrupt it was: Lightning turns it into SystemExit, and leaves the key and SIGTERM dead."""
    main = threading.current_thread() is threading.main_thread()
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except SystemExit as exit_:
        if isinstance(exit_.__context__, KeyboardInterrupt):
            raise exit_.__context__ from None
        raise
    finally:
        for signum, handler in handlers.items() if main else ():
            signal.signal(signum, handler)
