"""The run folder: config.yaml, record.json, metrics.jsonl, checkpoints/, wandb/. Looked at before any work."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnzoo.errors import RequestError
from attnzoo.files import write_text_atomic
from attnzoo.measure.record import NOT_IDENTITY, config_hash
from attnzoo.model import CausalLM, build_model
from attnzoo.model.weights import load_weights
from attnzoo.tasks import Task, build_task
from attnzoo.training.checkpoints import read_checkpoint
from attnzoo.training.config import RunConfig, load_config, to_dict, to_yaml

OWN = ("record.json", "metrics.jsonl", "metrics.csv", "checkpoints", "wandb")


@dataclass(frozen=True)
class RunFolder:
    """Where one run lives.

    Args:
        path: the folder; it need not exist yet.
        resume_from: the checkpoint to go on from, or None; ``resume_step`` is its step.
        ours: a run of the same configuration is already there.
    """

    path: Path
    resume_from: Path | None = None
    resume_step: int = 0
    ours: bool = False

    @property
    def record(self) -> Path:
        return self.path / "record.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

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
            RequestError: it holds a run of another configuration, nothing to resume, or a broken checkpoint.
        """
        folder = cls(Path(cfg.run_dir).expanduser())
        config = folder.path / "config.yaml"
        if not config.exists():
            if cfg.trainer.resume:
                raise RequestError(f"nothing to resume: {folder.path} holds no run (no config.yaml)")
            return folder
        there = load_config(config)
        if config_hash(to_dict(there)) != config_hash(to_dict(cfg)):
            raise RequestError(
                f"run_dir={folder.path} holds a run of another configuration; choose another folder or remove it",
                differences(there, cfg),
            )
        if not cfg.trainer.resume or not folder.checkpoint.exists():
            return cls(folder.path, ours=True)
        step = read_checkpoint(folder.checkpoint)["global_step"]
        return cls(folder.path, folder.checkpoint, step, ours=True)

    def begin(self, cfg: RunConfig) -> None:
        """Make the folder ready: what an earlier run of this configuration left is removed, unless it is resumed."""
        if self.ours and self.resume_from is None:
            for name in OWN:
                old = self.path / name
                shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink(missing_ok=True)
        elif self.ours:
            self.record.unlink(missing_ok=True)  # of the run that ended before
        write_text_atomic(self.path / "config.yaml", to_yaml(cfg))


def differences(one: RunConfig, other: RunConfig, most: int = 6) -> list[str]:
    """'trainer.max_steps: there 300, asked for 200' for each setting that differs and matters."""
    there, asked = _flat(to_dict(one)), _flat(to_dict(other))
    lines = [
        f"{key}: there {there.get(key)}, asked for {asked.get(key)}"
        for key in dict.fromkeys([*there, *asked])
        if there.get(key) != asked.get(key)
    ]
    return lines if len(lines) <= most else [*lines[:most], f"and {len(lines) - most} more"]


def load_run(folder: str | Path) -> tuple[RunConfig, CausalLM, Task]:
    """A finished run: its configuration, its trained model on the CPU in evaluation mode, its task.

    Raises:
        RequestError: no run folder, or a missing or broken checkpoint.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise RequestError(
            f"{folder} is no run folder" + (": it is a file" if folder.exists() else ": it does not exist")
        )
    cfg = load_config(folder)
    place = RunFolder(folder)
    if not place.weights.exists():
        raise RequestError(f"{folder} holds no trained model: {place.weights} is missing")
    task = build_task(cfg.task, cfg.data, cfg.seed)
    model = build_model(cfg, task.vocab_size)
    load_weights(model, place.weights)
    return cfg, model.eval(), task


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{'trainer.max_steps': 300, …}, without what does not tell configurations apart."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        name = prefix + key
        if name in NOT_IDENTITY:
            continue
        out |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return out
