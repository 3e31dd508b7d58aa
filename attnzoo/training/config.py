"""Settings of a run. No torch and no Lightning here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml

from attnzoo.data.config import DataConfig
from attnzoo.errors import RequestError
from attnzoo.files import read_yaml
from attnzoo.measure.config import MeasureConfig
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig, named
from attnzoo.open_groups import open_groups, without_foreign
from attnzoo.redact import redacted
from attnzoo.settings import plain, read
from attnzoo.tasks.config import ProbeConfig, TaskConfig


@dataclass
class TrainerConfig:
    """How a model is trained. Options of the optimizer and of the schedule are further keys of this group.

    Args:
        max_steps: optimiser steps.
        batch_size: sequences a micro-batch; accumulate: micro-batches a step.
        optimizer: what steps the parameters, such as muon (2-D weights of the blocks by Muon, the rest by AdamW) or adamw.
        schedule: how the learning rate changes: wsd (constant, then a linear decay) or cosine.
        grad_clip: largest gradient norm; 0 is off.
        precision: auto (bf16 where the device multiplies it fast, else fp32), fp32, bf16, or fp16 (CUDA only; losses are scaled).
        tf32: float32 products of a CUDA device may round their factors to 10 bits.
        compile: torch.compile the training step: true, false, or auto (on CUDA, where it is known to give the same numbers).
        device: auto, cpu, cuda or cuda:N.
        eval_every: steps between validations, 0 for the end only; log_every: steps between log lines.
        checkpoint_every: steps between resumable checkpoints, 0 for the end only.
        resume: there must be a run to go on with; without it, too, a run that is not finished is gone on with.
        restart: start over: what the run folder holds of this run is removed.
        init_from: a run folder or an export whose weights this run starts from.
        init_sha256: filled in: stands for the weights of init_from, wherever they lie.
        progress: show a progress bar.
        threads: CPU threads, None for torch's choice.
    """

    chosen: ClassVar[dict[str, str]] = {"optimizer": "optimizer", "schedule": "schedule"}

    max_steps: int = 300
    batch_size: int = 8
    accumulate: int = 1
    optimizer: str = "muon"
    schedule: str = "wsd"
    grad_clip: float = 1.0
    precision: str = "auto"
    tf32: bool = False
    compile: bool | str = "auto"
    device: str = "auto"
    eval_every: int = 100
    log_every: int = 10
    checkpoint_every: int = 0
    resume: bool = False
    restart: bool = False
    init_from: str | None = None
    init_sha256: str | None = None
    progress: bool = True
    threads: int | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class LoggerConfig:
    """Where metrics go besides ``metrics.jsonl``, which is always written. Options of the loggers are further keys of this group.

    Args:
        extra: loggers, such as tensorboard.
        wandb: offline, online or disabled.
        project, group, name: of the W&B run, what it is filed under and called; name is by default that of the cell.
        csv: also write metrics.csv, as the logger csv does.
    """

    chosen: ClassVar[dict[str, str]] = {"extra": "logger"}

    extra: list[str] = field(default_factory=list)
    wandb: str = "offline"
    project: str = "attnzoo"
    group: str | None = None
    name: str | None = None
    csv: bool = False
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class RunConfig:
    """One training run, whole: what `attnzoo.train` takes. A pattern of backends in ``model`` takes the place of
    ``attention``, which then only names it. The groups are its fields of settings; beside them:

    Args:
        seed: of the initial weights and of what is drawn in training.
        run_dir: the folder of the run; auto finds one under ``runs/`` by the settings.
        code: filled in: the files of components that no package brings (see `attnzoo.from_files`).
    """

    attention: AttentionConfig
    positions: PositionsConfig = field(default_factory=PositionsConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    seed: int = 0
    run_dir: str = "runs/train"
    code: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.attention = named(self.model, self.attention)


@dataclass
class CompareConfig(RunConfig):
    """A comparison: each backend with each seed, one process a cell; what `attnzoo.compare` takes.

    Args:
        backends: names, or hybrids of them such as ``3xgla+sdpa``; options come from ``options[name]`` or, for the backend
            of ``attention``, from there.
        seeds: one cell a backend and seed.
        baseline: the backend that ratios refer to.
        jobs: cells trained at once, on CUDA each on a device of its own; timing rounds come afterwards, alone.
        time_limit: seconds a cell may take; past them it writes its checkpoint and has failed. None is no limit.
        options: backend name -> its options.
    """

    backends: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [0])
    baseline: str = "sdpa"
    jobs: int = 1
    time_limit: float | None = None
    options: dict[str, dict] = field(default_factory=dict)


@dataclass
class SweepConfig(RunConfig):
    """One cell of a sweep as it was asked for.

    Args:
        jobs: cells trained at once, on CUDA each on a device of its own; timing rounds come afterwards, alone.
        time_limit: seconds a cell may take; past them it writes its checkpoint and has failed. None is no limit.
    """

    jobs: int = 1
    time_limit: float | None = None


def to_dict(cfg: RunConfig) -> dict[str, Any]:
    """The configuration as plain values, in the form of ``config.yaml``: a component's options lie beside its name."""
    values = plain(cfg)
    if not values["measure"]["metrics"]:  # as before there were any: the same settings keep their hash
        del values["measure"]["metrics"]
    return values if values["code"] else {key: value for key, value in values.items() if key != "code"}


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """The configuration that `to_dict` wrote; with ``backends`` a `CompareConfig`. A missing key takes its default. Options that
    a chosen component does not have, but another of its kind, are left out: earlier versions wrote them all.

    Raises:
        RequestError: unknown keys, values of another type, a ``_target_``; every fault at once.
    """
    cls = CompareConfig if "backends" in values else RunConfig
    if faults := [f"{where}: a configuration names things, it never runs code" for where in targets(values)]:
        raise RequestError("this configuration cannot be used", faults)
    arguments, faults = read(cls, values)
    if "attention" not in values:
        faults.append("attention.name is missing")
    if faults:
        raise RequestError("this configuration cannot be used", faults)
    cfg = cls(**arguments)
    for path, group in open_groups(cfg):
        without_foreign(path, group)
    return cfg


def chosen_loggers(cfg: LoggerConfig) -> list[str]:
    """Their names, each once."""
    return list(dict.fromkeys([*cfg.extra, *(["csv"] if cfg.csv else [])]))


def to_yaml(cfg: RunConfig) -> str:
    """The text of ``config.yaml``, without secrets."""
    return yaml.safe_dump(redacted(to_dict(cfg)), sort_keys=False, allow_unicode=True)


def load_config(path: str | Path) -> RunConfig:
    """The configuration of a run folder, or of a YAML file.

    Raises:
        RequestError: there is none, it is not YAML, or it does not fit (see `from_dict`).
    """
    path = Path(path)
    file = path / "config.yaml" if path.is_dir() else path
    try:
        values = read_yaml(file)
    except FileNotFoundError:
        gone = "no such folder" if file == path else f"no run folder: {file} is missing"
        raise RequestError(f"{path}: {gone}") from None
    if not isinstance(values, Mapping):
        raise RequestError(f"{file} holds no configuration")
    return from_dict(values)


def is_export(folder: str | Path) -> bool:
    """Whether a model was exported into this folder, rather than trained in it."""
    folder = Path(folder).expanduser()
    return (folder / "config.json").is_file() and not (folder / "config.yaml").exists()


def targets(values: Any, path: str = "") -> list[str]:
    """Where a ``_target_`` stands, at any depth: Hydra's way to name code that is run."""
    if isinstance(values, (list, tuple)):
        return [where for n, item in enumerate(values) for where in targets(item, f"{path}[{n}]")]
    if not isinstance(values, Mapping):
        return []
    named = {f"{path}.{key}".lstrip("."): item for key, item in values.items()}
    return [where for where in named if where.endswith("_target_")] + [
        found for where, item in named.items() for found in targets(item, where)
    ]
