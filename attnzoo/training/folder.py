"""The run folder: config.yaml, record.json, metrics.jsonl, checkpoints/, wandb/. Looked at before any work."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnzoo.errors import RequestError
from attnzoo.files import write_text_atomic
from attnzoo.measure.record import BY_CONTENT, NOT_IDENTITY, Record, config_hash
from attnzoo.model import CausalLM
from attnzoo.tasks import Task
from attnzoo.training.checkpoints import read_checkpoint
from attnzoo.training.config import RunConfig, load_config, to_dict, to_yaml
from attnzoo.training.kept import check_text
from attnzoo.training.saved import load_model, load_task

OWN = ("record.json", "metrics.jsonl", "metrics.csv", "checkpoints", "wandb", "log.txt", "data.json")
KEPT = ("ok", "oom")
"""A run that ended so is not run again by the same command; a refused one is looked at again, which costs nothing."""
LENGTH = "trainer.max_steps"
"""The one setting that a later start may change, upwards."""


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
        return self.path / "log.txt"

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
        changed = differences(there, cfg)
        if set(changed) - {LENGTH} or (changed and there.trainer.max_steps > cfg.trainer.max_steps):
            raise RequestError(
                f"run_dir={folder.path} holds a run of another configuration; choose another folder or remove it "
                f"({LENGTH} alone may grow)",
                few(list(changed.values())),
            )
        if cfg.trainer.restart:
            with suppress(RequestError):  # a broken record is removed like a whole one
                return cls(folder.path, there, Record.load(folder.record))
            return cls(folder.path, there)
        check_text(folder.path, cfg)
        old = Record.load(folder.record) if folder.record.exists() else None
        again = cfg.trainer.resume and old is not None and old["status"] == "oom"
        same = old is not None and old.get("config_hash", config_hash(to_dict(there))) == config_hash(to_dict(cfg))
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


def differences(one: RunConfig, other: RunConfig) -> dict[str, str]:
    """'trainer.max_steps: there 300, asked for 200' by key, for each setting that differs and matters."""
    there, asked = _flat(to_dict(one)), _flat(to_dict(other))
    return {
        key: f"{key}: there {there.get(key)}, asked for {asked.get(key)}"
        for key in dict.fromkeys([*there, *asked])
        if there.get(key) != asked.get(key)
    }


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


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{'trainer.max_steps': 300, …}, without what does not tell configurations apart."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        name = prefix + key
        if name in (*NOT_IDENTITY, BY_CONTENT):
            continue
        out |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return out
