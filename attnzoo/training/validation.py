"""What a configuration must satisfy before any work starts. Every fault is found at once. No torch."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from attnzoo.data.sources import data_problems
from attnzoo.errors import nearest, unknown
from attnzoo.model.config import ModelConfig, hybrid_parts, parameter_number, score_scale
from attnzoo.tasks.config import ProbeConfig, TaskConfig
from attnzoo.training.config import CompareConfig, RunConfig

LARGEST_SEED = 2**32 - 1  # numpy and Lightning take no more

CHOICES = {
    "positions.name": ("none", "learned", "sinusoidal", "rope", "alibi", "relative"),
    "model.projection": ("qkv", "mla"),
    "model.norm": ("rms", "layer"),
    "model.mlp": ("swiglu", "geglu", "gelu"),
    "model.output_gate": ("none", "headwise", "elementwise"),
    "task.name": ("text", "recall"),
    "probe.task.name": ("recall",),
    "trainer.optimizer": ("muon", "adamw"),
    "trainer.schedule": ("wsd", "cosine"),
    "trainer.precision": ("auto", "fp32", "bf16"),
    "trainer.device": ("auto", "cpu", "cuda"),
    "logger.wandb": ("offline", "online", "disabled"),
}


def _keys(**names: str) -> list[str]:
    """Dotted keys from names by group; ``probe_task`` is the group probe.task, ``root`` the top level."""
    prefix = {group: "" if group == "root" else group.replace("_", ".") + "." for group in names}
    return [prefix[group] + name for group, listed in names.items() for name in listed.split()]


AT_LEAST_ONE = _keys(
    positions="max_tokens",
    model="n_layers d_model n_heads n_kv_heads head_dim latent_dim mlp_width",
    task="n_tokens validation_rows",
    probe="max_steps batch_size n_layers d_model n_heads",
    probe_task="n_tokens validation_rows",
    trainer="max_steps batch_size accumulate log_every threads",
    measure="rounds decode_context decode_tokens",
    root="jobs",
)
AT_LEAST_TWO = _keys(positions="buckets", task="n_symbols validation_tokens", probe_task="n_symbols validation_tokens")
NOT_NEGATIVE = _keys(
    model="short_conv rope_dim",
    probe="short_conv",
    trainer="weight_decay warmup_steps grad_clip eval_every checkpoint_every",
)
POSITIVE = _keys(
    positions="base",
    model="mlp_ratio norm_eps",
    probe="learning_rate",
    trainer="muon_lr adamw_lr",
    measure="seconds",
)

BOUNDS: list[tuple[list[str], Callable[[float], bool], str]] = [
    (AT_LEAST_ONE, lambda x: x >= 1, "must be at least 1"),
    (AT_LEAST_TWO, lambda x: x >= 2, "must be at least 2"),
    (NOT_NEGATIVE, lambda x: 0 <= x < math.inf, "must not be negative"),
    (POSITIVE, lambda x: 0 < x < math.inf, "must be more than 0"),
    (_keys(model="dropout attention_dropout"), lambda x: 0 <= x < 1, "must be at least 0 and below 1"),
    (["trainer.decay_fraction"], lambda x: 0 <= x <= 1, "must be between 0 and 1"),
    (["seed"], lambda x: 0 <= x <= LARGEST_SEED, f"must be between 0 and {LARGEST_SEED}"),
]


def faults(cfg: RunConfig) -> list[str]:
    """Every value that makes no sense, alone or beside another. The machine is not looked at."""
    found = [
        f"{key}={value}: {phrase}"
        for keys, holds, phrase in BOUNDS
        for key in keys
        if (value := lookup(cfg, key)) is not None and not holds(value)
    ]
    for key, choices in CHOICES.items():
        if (value := lookup(cfg, key)) is not None and value not in choices:
            found.append(choice_fault(key, value, choices))
    if not all(0 <= beta < 1 for beta in cfg.trainer.betas):
        found.append(f"trainer.betas={list(cfg.trainer.betas)}: each must be at least 0 and below 1")
    if not all(n >= 1 for n in cfg.measure.lengths):
        found.append(f"measure.lengths={list(cfg.measure.lengths)}: each must be at least 1")
    if not cfg.run_dir.strip():
        found.append("run_dir is empty: name a folder")
    found += [*_pattern_faults(cfg.model), *_scale_faults(cfg.model.scale)]
    number = parameter_number(cfg.model.match_parameters)
    if number is not None and not 1 <= number < math.inf:
        found.append(f"model.match_parameters={cfg.model.match_parameters}: must be at least 1, or a backend")
    found += [*_head_faults("model", cfg.model, cfg.positions.name), *_recall_faults("task", cfg.task)]
    rows = cfg.positions.max_tokens
    if cfg.positions.name == "learned" and rows < cfg.task.n_tokens:
        found.append(
            f"positions.max_tokens={rows}: the learned table is shorter than task.n_tokens={cfg.task.n_tokens}"
        )
    if cfg.positions.max_distance <= cfg.positions.buckets // 2:
        found.append(
            f"positions.max_distance={cfg.positions.max_distance}: must be more than the {cfg.positions.buckets // 2} "
            f"distances that have a bucket of their own among positions.buckets={cfg.positions.buckets}"
        )
    if cfg.probe.enabled:
        found += _head_faults("probe", cfg.probe, cfg.positions.name)
        found += _recall_faults("probe.task", cfg.probe.task)
    if isinstance(cfg, CompareConfig):
        found += _comparison_faults(cfg)
    return found


def machine_faults(cfg: RunConfig) -> list[str]:
    """What is missing on this machine: a folder that can be written, text files, packages."""
    data = data_problems(cfg.data) if cfg.task.name == "text" else []
    return [*_folder_faults(Path(cfg.run_dir).expanduser()), *data]


def lookup(cfg: Any, key: str) -> Any:
    """The value of a dotted key; None where this configuration has no such key."""
    for name in key.split("."):
        cfg = getattr(cfg, name, None)
    return cfg


def choice_fault(key: str, value: Any, choices: Iterable[str]) -> str:
    """'trainer.device=gpu: did you mean cpu? valid: auto, cpu, cuda' on one line."""
    near = nearest(str(value), choices)
    return f"{key}={value}: {f'did you mean {near}? ' if near else ''}valid: {', '.join(choices)}"


def _head_faults(group: str, model: ModelConfig | ProbeConfig, positions: str) -> Iterator[str]:
    width, heads = model.d_model, model.n_heads
    if width < 1 or heads < 1:
        return  # reported as bounds
    dim = getattr(model, "head_dim", None)
    if dim is None and width % heads:
        fitting = [n for n in range(1, width + 1) if width % n == 0]
        near = min(fitting, key=lambda n: abs(n - heads))
        yield f"{group}.n_heads={heads} does not divide {group}.d_model={width}; {near} does"
    elif positions == "rope" and (dim or width // heads) % 2:
        yield f"positions=rope turns pairs of features: the head dim {dim or width // heads} of {group} must be even"
    kv_heads = getattr(model, "n_kv_heads", None)
    if kv_heads is not None and kv_heads >= 1 and heads % kv_heads:
        fitting = [n for n in range(1, heads + 1) if heads % n == 0]
        valid = ", ".join(map(str, fitting))
        yield f"{group}.n_kv_heads={kv_heads} does not divide {group}.n_heads={heads}; valid: {valid}"


def _pattern_faults(model: ModelConfig) -> Iterator[str]:
    pattern = model.attention_pattern
    if 1 <= model.n_layers < len(pattern):
        yield (
            f"model.n_layers={model.n_layers}: model.attention_pattern has {len(pattern)} entries, "
            "the last would stand in no layer"
        )
    for entry in model.attention_options:
        if entry not in pattern:
            yield unknown("entry of model.attention_pattern", entry, set(pattern))


def _scale_faults(scale: str | None) -> Iterator[str]:
    try:
        if not 0 < score_scale(scale, head_dim=1) < math.inf:
            yield f"model.scale={scale}: must be more than 0"
    except ValueError:
        yield choice_fault("model.scale", scale, ("1/D", "log_n", "null", "a number"))


def _recall_faults(group: str, task: TaskConfig) -> Iterator[str]:
    if task.name == "recall" and 1 <= task.n_tokens < 8:
        yield f"{group}.n_tokens={task.n_tokens}: recall needs at least 8; its shortest period is an eighth of them"


def _comparison_faults(cfg: CompareConfig) -> Iterator[str]:
    axes: dict[str, list] = {"backends": cfg.backends, "seeds": cfg.seeds}
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
