"""What a configuration must satisfy before any work starts. Every fault is found at once. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnzoo import components
from attnzoo.arguments import DEVICE, DEVICES, LARGEST, LARGEST_SEED, shown
from attnzoo.data.sources import data_problems
from attnzoo.errors import choice_fault
from attnzoo.model.config import hybrid_name, hybrid_parts, positions_entries
from attnzoo.model.validation import (
    ABOVE_ZERO,
    NOT_BELOW_ZERO,
    Bounds,
    at_least,
    head_faults,
    keys,
    model_faults,
    value_faults,
    with_options,
)
from attnzoo.open_groups import option_faults
from attnzoo.settings import leaves, plain, read
from attnzoo.tasks.build import length_faults, reads_text
from attnzoo.tasks.config import TaskConfig
from attnzoo.training.config import CompareConfig, LoggerConfig, RunConfig, SweepConfig, chosen_loggers

PRECISIONS = ("auto", "fp32", "bf16", "fp16")
CHOICES = {
    "probe.precision": PRECISIONS,
    "trainer.precision": PRECISIONS,
    "logger.wandb": ("offline", "online", "disabled"),
}


AT_LEAST_ONE = keys(
    task="n_tokens validation_rows",
    probe="max_steps batch_size n_layers d_model n_heads",
    probe_task="n_tokens validation_rows",
    trainer="max_steps batch_size accumulate log_every threads",
    measure="rounds decode_context decode_tokens",
    root="jobs",
)
NOT_NEGATIVE = keys(
    probe="short_conv",
    trainer="grad_clip eval_every checkpoint_every",
)
POSITIVE = keys(
    probe="learning_rate adamw_lr",
    measure="seconds",
    root="time_limit",
)

LARGEST_OF = {
    **dict.fromkeys(keys(model="n_layers", probe="n_layers"), 10_000),
    **dict.fromkeys(keys(model="n_heads n_kv_heads", probe="n_heads"), 65_536),
    **dict.fromkeys(keys(model="d_model head_dim latent_dim mlp_width", probe="d_model", data="bpe_vocab"), 2**24),
    **dict.fromkeys(keys(trainer="batch_size accumulate", probe="batch_size"), 2**20),
    **dict.fromkeys(keys(task="n_tokens", probe_task="n_tokens"), 2**26),
    **dict.fromkeys(keys(trainer="max_steps", probe="max_steps"), 10**9),
    "trainer.threads": 4096,
    "seed": LARGEST_SEED,
}
"""What a count may be at most: far above what anybody trains, far below where memory, indices and dates overflow. Every other
whole number, an attention's own too, is at most `LARGEST`."""

BOUNDS: Bounds = [
    (AT_LEAST_ONE, *at_least(1)),
    (NOT_NEGATIVE, *NOT_BELOW_ZERO),
    (POSITIVE, *ABOVE_ZERO),
    (["trainer.compile"], lambda x: x in (True, False, "auto"), "valid: true, false, auto"),
    (["seed"], lambda x: 0 <= x <= LARGEST_SEED, f"must be between 0 and {LARGEST_SEED}"),
]


def faults(cfg: RunConfig) -> list[str]:
    """Every value that makes no sense, alone or beside another. The machine is not looked at."""
    if wrong := read(type(cfg), plain(cfg))[1]:
        return with_options(wrong, cfg.positions)  # what is of another type cannot be compared with a bound
    if beyond := [*_unwritable(plain(cfg)), *_too_large(plain(cfg))]:
        return beyond
    found = [*value_faults(cfg, BOUNDS, CHOICES), *model_faults(cfg.model, cfg.positions)]
    found += _device_faults(cfg)
    found += option_faults("trainer", cfg.trainer)
    if cfg.probe.optimizer not in (optimizers := components.names("optimizer")):
        found.append(choice_fault("probe.optimizer", cfg.probe.optimizer, optimizers))
    if not all(n >= 1 for n in cfg.measure.lengths):
        found.append(f"measure.lengths={list(cfg.measure.lengths)}: each must be at least 1")
    if not cfg.run_dir.strip():
        found.append("run_dir is empty: name a folder")
    found += [*head_faults("model", cfg.model, cfg.positions), *_length_faults("task", cfg.task)]
    for scheme in positions_entries(cfg.positions).values():
        rows = scheme.options.get("max_tokens")
        if isinstance(rows, int) and rows < cfg.task.n_tokens:
            found.append(
                f"positions.max_tokens={rows}: {scheme.name} has fewer positions than task.n_tokens={cfg.task.n_tokens}"
            )
    if cfg.probe.enabled:
        found += head_faults("probe", cfg.probe, cfg.positions)
        found += _length_faults("probe.task", cfg.probe.task)
        if not _is_scored_by_accuracy(cfg.probe.task):
            found.append(f"probe.task={cfg.probe.task.name}: the probe is a task with a chance level, without a text")
    if isinstance(cfg, (CompareConfig, SweepConfig)) and cfg.jobs > most_jobs():
        found.append(
            f"jobs={cfg.jobs}: each is a process of its own, and {most_jobs()} the most for {os.cpu_count()} cores"
        )
    if isinstance(cfg, CompareConfig):
        found += _comparison_faults(cfg)
    return found


def _too_large(values: Any, key: str = "") -> Iterator[str]:
    """Whole numbers that nothing can count to, wherever they stand."""
    for name, value in leaves(values, key):
        most = LARGEST_SEED if name.startswith("seeds") else LARGEST_OF.get(name, LARGEST)
        if isinstance(value, int) and abs(value) > most:
            yield f"{name}={shown(value)}: must be at most {most}"


def _unwritable(values: Any) -> Iterator[str]:
    """Texts that are no Unicode, such as a file name in another encoding: no record, log or table could hold them."""
    for name, value in leaves(values):
        for text in (name, value):
            if isinstance(text, str) and not _encodes(text):
                yield f"{ascii(name)[1:-1]}={value!a}: this is not UTF-8; rename it"
                break


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def most_jobs() -> int:
    """Processes at once that a machine of this size can be meant to run."""
    return max(16, 4 * (os.cpu_count() or 1))


def machine_faults(cfg: RunConfig) -> list[str]:
    """What is missing on this machine: a folder that can be written, text files, packages."""
    there = cfg.task.name in components.names("task")
    data = data_problems(cfg.data) if there and reads_text(cfg.task) else []
    return [*_folder_faults(Path(cfg.run_dir).expanduser()), *data, *_logger_faults(cfg.logger)]


def _logger_faults(cfg: LoggerConfig) -> list[str]:
    """What a chosen logger lacks here."""
    there = [name for name in chosen_loggers(cfg) if name in components.names("logger")]
    return [f"logger.extra: {name}: {why}" for name in there for why in components.get("logger", name).why_not()]


def _device_faults(cfg: RunConfig) -> Iterator[str]:
    """A device by no name there is, and what the CPU lacks where it is asked for by name."""
    trainer = cfg.trainer
    if not DEVICE.fullmatch(trainer.device):
        yield choice_fault("trainer.device", trainer.device, DEVICES)
    if not trainer.device.startswith("cpu"):
        return
    for group, precision in (
        ("trainer", trainer.precision),
        ("probe", cfg.probe.precision if cfg.probe.enabled else ""),
    ):
        if precision == "fp16":
            yield f"{group}.precision=fp16 with trainer.device={trainer.device}: fp16 is for CUDA; a CPU takes bf16 and fp32"
    if trainer.tf32:
        yield f"trainer.tf32=true with trainer.device={trainer.device}: TF32 is a mode of CUDA devices"


def _length_faults(group: str, task: TaskConfig) -> list[str]:
    return length_faults(task, group) if task.name in components.names("task") and task.n_tokens >= 1 else []


def _is_scored_by_accuracy(task: TaskConfig) -> bool:
    return task.name not in components.names("task") or not reads_text(task)


def _comparison_faults(cfg: CompareConfig) -> Iterator[str]:
    if cfg.seed:
        yield f"seed={cfg.seed} would train no seed {cfg.seed}: a comparison takes seeds=[{cfg.seed}]"
    axes: dict[str, list] = {"backends": [hybrid_name(hybrid_parts(name)) for name in cfg.backends], "seeds": cfg.seeds}
    for key, values in axes.items():
        if not values:
            yield f"{key}=[] is empty: nothing to compare"
        repeated = sorted({str(value) for value in values if values.count(value) > 1})
        if repeated:
            yield f"{key} names {', '.join(repeated)} more than once"
    for seed in cfg.seeds:
        if not 0 <= seed <= LARGEST_SEED:
            yield f"seeds: {seed} must be between 0 and {LARGEST_SEED}"
    members = {member for name in cfg.backends for member in hybrid_parts(name)}
    for name in cfg.options:
        if name not in members:
            yield f"options.{name}: {name} is not among the backends {', '.join(cfg.backends)}"
    for name in cfg.backends:
        if 1 <= cfg.model.n_layers < len(hybrid_parts(name)):
            yield f"model.n_layers={cfg.model.n_layers}: too few for the {len(hybrid_parts(name))} layers of {name}"
    if cfg.model.attention_pattern:
        yield (
            "model.attention_pattern and backends both choose the attention: name hybrids among the backends, "
            "as in backends=[sdpa,3xgla+sdpa]"
        )


def _folder_faults(folder: Path) -> Iterator[str]:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        yield f"run_dir={folder}: {existing} is a file, a folder is needed"
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield f"run_dir={folder}: no permission to write in {existing}"
