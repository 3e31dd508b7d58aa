"""What the settings of a model must satisfy, alone and beside another, and how a fault reads. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attnzoo import components
from attnzoo.arguments import ABOVE_ZERO, NOT_BELOW_ZERO, Holds
from attnzoo.errors import choice_fault, unknown
from attnzoo.model.config import AUTO, ModelConfig, PositionsConfig, parameter_number, positions_entries, score_scale
from attnzoo.open_groups import unknown_name
from attnzoo.settings import plain, read

Bounds = list[tuple[list[str], Callable[[float], bool], str]]


def keys(**names: str) -> list[str]:
    """Dotted keys from names by group; ``probe_task`` is the group probe.task, ``root`` the top level."""
    prefix = {group: "" if group == "root" else group.replace("_", ".") + "." for group in names}
    return [prefix[group] + name for group, listed in names.items() for name in listed.split()]


def at_least(least: int) -> Holds:
    """The bound and how it reads."""
    return lambda x: x >= least, f"must be at least {least}"


CHOICES = {
    "model.norm": ("rms", "layer"),
    "model.mlp": ("swiglu", "geglu", "gelu"),
    "model.output_gate": ("none", "headwise", "elementwise"),
}
SIZES = keys(model="n_layers d_model n_heads n_kv_heads head_dim latent_dim mlp_width")
BOUNDS: Bounds = [
    (SIZES, *at_least(1)),
    (keys(model="short_conv rope_dim"), *NOT_BELOW_ZERO),
    (keys(model="mlp_ratio norm_eps"), *ABOVE_ZERO),
    (keys(model="dropout attention_dropout"), lambda x: 0 <= x < 1, "must be at least 0 and below 1"),
]


@dataclass
class Settings:
    """The groups of a model by the names that its keys have."""

    model: ModelConfig
    positions: PositionsConfig


def model_faults(model: ModelConfig, positions: PositionsConfig) -> list[str]:
    """Every value that makes no sense, whatever backend stands in the model; of other types alone where there are any."""
    settings = Settings(model, positions)
    if wrong := read(Settings, plain(settings))[1]:
        return with_options(wrong, positions)
    found = [*value_faults(settings, BOUNDS, CHOICES), *_pattern_faults(model), *_scale_faults(model.scale)]
    number = parameter_number(model.match_parameters)
    if number is not None and not 1 <= number < math.inf:
        found.append(f"model.match_parameters={model.match_parameters}: must be at least 1, or a backend")
    if model.projection is not None and model.projection not in components.names("projection"):
        found.append(choice_fault("model.projection", model.projection, components.names("projection")))
    elif model.projection is not None:
        path = "model.projection_options."
        found += components.read_options("projection", model.projection, model.projection_options, path)[1]
    elif model.projection_options:
        found.append("model.projection_options: model.projection does not say of which they are")
    return [*found, *positions_faults(positions, model.n_layers)]


def with_options(wrong: list[str], positions: PositionsConfig) -> list[str]:
    """The faults of types, and those of the options of positions where they can be read."""
    readable = not any(each.startswith("positions") for each in wrong)
    return [*wrong, *(positions_faults(positions, n_layers=0) if readable else [])]


def positions_faults(positions: PositionsConfig, n_layers: int) -> list[str]:
    """What is wrong with the schemes of the layers, their pattern and their options."""
    found, pattern = [], positions.pattern
    if 1 <= n_layers < len(pattern):
        found.append(
            f"model.n_layers={n_layers}: positions.pattern has {len(pattern)} entries, the last would stand in no layer"
        )
    for entry in positions.pattern_options:
        if entry not in pattern:
            found.append(unknown("entry of positions.pattern", entry, set(pattern)))
    for entry, scheme in positions_entries(positions).items():
        if scheme.name not in (*components.names("positions"), AUTO):
            found.append(unknown_name("positions", scheme.name))
            continue
        path = "positions." if entry == scheme.name else f"positions.pattern_options.{entry}."
        options = scheme.options if pattern else positions.options
        found += components.read_options("positions", "rope" if scheme.name == AUTO else scheme.name, options, path)[1]
    return list(dict.fromkeys(found))


def turning(positions: PositionsConfig) -> list[str]:
    """The schemes that turn pairs of channels; auto may."""
    names = [scheme.name for scheme in positions_entries(positions).values()]
    known = [name for name in names if name in components.names("positions")]
    return [
        name for name in names if name == AUTO or (name in known and components.declared("positions", name, "turns"))
    ]


def value_faults(cfg: Any, bounds: Bounds, choices: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Values out of bounds, or not among their choices; a key that has no value is none."""
    for names, holds, phrase in bounds:
        for key in names:
            if (value := lookup(cfg, key)) is not None and not holds(value):
                yield f"{key}={value}: {phrase}"
    for key, valid in choices.items():
        if (value := lookup(cfg, key)) is not None and value not in valid:
            yield choice_fault(key, value, valid)


def lookup(cfg: Any, key: str) -> Any:
    """The value of a dotted key; None where this configuration has no such key."""
    for name in key.split("."):
        cfg = getattr(cfg, name, None)
    return cfg


def head_faults(group: str, model: Any, positions: PositionsConfig) -> Iterator[str]:
    """How heads and widths of one group do not fit together, by key name."""
    width, heads = model.d_model, model.n_heads
    if width < 1 or heads < 1:
        return  # reported as bounds
    dim = getattr(model, "head_dim", None)
    if dim is None and width % heads:
        fitting = [n for n in range(1, width + 1) if width % n == 0]
        near = min(fitting, key=lambda n: abs(n - heads))
        yield f"{group}.n_heads={heads} does not divide {group}.d_model={width}; {near} does"
    elif (dim or width // heads) % 2 and (names := turning(positions)):
        turns, other = ("may turn", "; positions=none takes any") if names[0] == AUTO else ("turns", "")
        size = dim or width // heads
        yield f"positions={names[0]} {turns} pairs of features: the head dim {size} of {group} must be even{other}"
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
        number = score_scale(scale, head_dim=1)
        if number is not None and not 0 < number < math.inf:
            yield f"model.scale={scale}: must be more than 0"
    except ValueError:
        yield choice_fault("model.scale", scale, ("1/D", "log_n", "null", "a number"))
