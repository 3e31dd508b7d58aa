"""Checkpoints a run goes on from exactly: when they are written, the random states in them, the file."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from attnzoo.errors import RequestError
from attnzoo.files import write_bytes_atomic
from attnzoo.seeds import reseed
from attnzoo.training.callbacks import due
from attnzoo.training.module import TrainingModule
from attnzoo.training.stopping import Stopping


class RandomState(Callback):
    """Saves the global random states with a checkpoint and restores them before the first step: dropout goes on.

    Within a step the state is that of its beginning, since a step that is broken off is taken again.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.saved: dict[str, Any] | None = None
        self.before_step: dict[str, Any] | None = None

    def on_train_batch_start(self, *_: Any) -> None:
        self.before_step = random_state()

    def on_train_batch_end(self, *_: Any) -> None:
        self.before_step = None

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        if self.saved is None:
            reseed(self.seed, module.device)
            random.seed(self.seed)
            return
        torch.set_rng_state(self.saved["torch"].cpu())
        version, internal, gauss = self.saved["python"]
        random.setstate((version, tuple(internal), gauss))
        if torch.cuda.is_available() and self.saved["cuda"]:
            torch.cuda.set_rng_state_all([state.cpu() for state in self.saved["cuda"]])

    def state_dict(self) -> dict[str, Any]:
        return self.before_step or random_state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.saved = state


def random_state() -> dict[str, Any]:
    """The states of torch's and Python's global generators."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"torch": torch.get_rng_state(), "cuda": cuda, "python": random.getstate()}


class Checkpoints(Checkpoint):
    """``last.ckpt`` every ``checkpoint_every`` steps, at the end, and where a run is stopped or breaks: the last whole step.

    Lightning calls a `Checkpoint` after the other callbacks. Its ModelCheckpoint, under manual optimisation, may save the
    parameters from before the step.

    Args:
        path: the file.
        stop: nothing stops a write.
        note: from the step and what computed the attention: what else a checkpoint holds, under ``"run"``.
    """

    def __init__(self, path: Path, stop: Stopping, note: Callable[[int, str | None], dict[str, Any]]) -> None:
        self.path, self.stop, self.note = path, stop, note
        self.saved: int | None = None

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        self.saved = trainer.global_step or None

    def on_train_batch_end(self, trainer: Trainer, module: TrainingModule, *_: Any) -> None:  # type: ignore[override]
        if trainer.should_stop or due(trainer.global_step, module.cfg.checkpoint_every, module.cfg.max_steps):
            module.assert_finite()
            self.save(trainer, module)

    def on_exception(self, trainer: Trainer, module: TrainingModule, exception: BaseException) -> None:  # type: ignore[override]
        step = trainer.global_step
        if step and step != self.saved and module.whole(step):
            with suppress(RequestError, MemoryError):  # what broke the run is what is told
                self.save(trainer, module)

    def on_save_checkpoint(self, trainer: Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["run"] = self.note(trainer.global_step, module.kernel)

    def save(self, trainer: Trainer, module: TrainingModule) -> None:
        with module.stopwatch.paused(), self.stop.shield():
            trainer.save_checkpoint(self.path)
        self.saved = trainer.global_step


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
