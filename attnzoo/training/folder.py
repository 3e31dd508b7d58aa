"""The run folder: config.yaml, record.json, metrics.jsonl, checkpoints/, wandb/. Looked at before any work."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attnzoo.errors import RequestError
from attnzoo.files import write_text_atomic
from attnzoo.measure.record import Record, config_hash
from attnzoo.model import CausalLM
from attnzoo.tasks import Task
from attnzoo.training.again import LENGTH, SPLIT, flat_settings, hash_as_written, in_the_way
from attnzoo.training.checkpoints import read_checkpoint
from attnzoo.training.config import RunConfig, load_config, to_dict, to_yaml
from attnzoo.training.kept import check_text
from attnzoo.training.log import LOG
from attnzoo.training.saved import load_model, load_task

OWN = ("record.json", "metrics.jsonl", "metrics.csv", "tensorboard", "checkpoints", "wandb", LOG, "data.json")
KEPT = ("ok", "oom")
"""A run that ended so is not run again by the same command; a refused one is looked at again, which costs nothing."""


@dataclass(frozen=True)
class RunFolder:
    """Where one run lives, and what earlier starts have left there.

    Args:
        path: the folder; it need not exist yet.
        there: the settings of the run in it, None where there is none.
        old: its record.
        finished: it is this very run, and done.
        resume_from: the checkpoint to go on from, or None; ``resume_step`` is its step.
        saved: what the starts before have noted in it (see `Notes`).
    """

    path: Path
    there: RunConfig | None = None
    old: Record | None = None
    finished: bool = False
    resume_from: Path | None = None
    resume_step: int = 0
    saved: dict[str, Any] = field(default_factory=dict)

    @property
    def record(self) -> Path:
        return self.path / "record.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def log(self) -> Path:
        return self.path / LOG

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def weights(self) -> Path:
        return self.path / "checkpoints" / "model.safetensors"

    @classmethod
    def inspect(cls, cfg: RunConfig) -> RunFolder:
        """Look, and write nothing.

        Raises:
            RequestError: it holds a run of another configuration, nothing to resume, a broken record or checkpoint.
        """
        folder = cls(Path(cfg.run_dir).expanduser())
        if not (folder.path / "config.yaml").exists():
            if cfg.trainer.resume:
                raise RequestError(f"nothing to resume: {folder.path} holds no run (no config.yaml)")
            return folder
        there = load_config(folder.path / "config.yaml")
        if changed := in_the_way(flat_settings(there), flat_settings(cfg)):
            raise RequestError(
                f"run_dir={folder.path} holds a run of another configuration; choose another folder or remove it "
                f"({LENGTH} may grow, {' and '.join(SPLIT)} may change while their product stays)",
                few(changed),
            )
        if cfg.trainer.restart:
            with suppress(RequestError):  # a broken record is removed like a whole one
                return cls(folder.path, there, Record.load(folder.record))
            return cls(folder.path, there)
        check_text(folder.path, cfg)
        old = Record.load(folder.record) if folder.record.exists() else None
        again = cfg.trainer.resume and old is not None and old["status"] == "oom"
        as_there = replace(cfg.trainer, batch_size=there.trainer.batch_size, accumulate=there.trainer.accumulate)
        hashes = [config_hash(to_dict(c)) for c in (cfg, replace(cfg, trainer=as_there))]
        if flat_settings(there) in (flat_settings(cfg), flat_settings(replace(cfg, trainer=as_there))):
            hashes.append(hash_as_written(folder.path))
        same = old is not None and old.get("config_hash", config_hash(to_dict(there))) in hashes
        if same and not again and old is not None and old["status"] in KEPT:
            return cls(folder.path, there, old, finished=True)
        if not folder.checkpoint.exists():
            return cls(folder.path, there, old)
        try:
            checkpoint = read_checkpoint(folder.checkpoint)
        except RequestError as error:
            raise RequestError(error.message, ["trainer.restart=true starts this run over"]) from error
        step = checkpoint["global_step"]
        if step > cfg.trainer.max_steps:
            raise RequestError(f"{folder.path} has been trained for {step} steps: {LENGTH} cannot be less")
        return cls(folder.path, there, old, False, folder.checkpoint, step, checkpoint.get("run", {}))

    def clear(self) -> None:
        """Remove what an earlier start of this run left."""
        for name in OWN:
            old = self.path / name
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink(missing_ok=True)

    def write_config(self, cfg: RunConfig) -> None:
        write_text_atomic(self.path / "config.yaml", to_yaml(cfg))


def few(lines: list[str], most: int = 6) -> list[str]:
    """The first lines, and how many more there are."""
    return lines if len(lines) <= most else [*lines[:most], f"and {len(lines) - most} more"]


def load_run(folder: str | Path) -> tuple[RunConfig, CausalLM, Task]:
    """A finished run: its configuration, its trained model on the CPU in evaluation mode, its task.

    Raises:
        RequestError: no run folder, a missing or broken checkpoint, or its text is gone or another (`load_saved` needs none).
    """
    cfg, model = load_model(folder)
    return cfg, model, load_task(folder, cfg)
