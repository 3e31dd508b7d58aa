"""From a person's words to a typed, validated configuration: Hydra's groups and overrides, faults in plain language."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnzoo import groups
from attnzoo.arguments import demand, paths, text, texts
from attnzoo.composition import as_written, compose_plain, parse_overrides
from attnzoo.data.sources import data_problems, text_sha256
from attnzoo.errors import AttnzooError, RequestError, unknown, unknown_backend
from attnzoo.measure.record import config_hash
from attnzoo.model.config import hybrid_name, hybrid_parts, named, parameter_number, pattern_entries
from attnzoo.names import file_name
from attnzoo.settings import plain, read
from attnzoo.training.again import auto_folder, flat, flat_settings, run_settings
from attnzoo.training.config import (
    CompareConfig,
    RunConfig,
    SweepConfig,
    from_dict,
    load_config,
    read_settings,
    to_dict,
    to_yaml,
)
from attnzoo.training.init_from import identified
from attnzoo.training.validation import faults, machine_faults

FREE = ("attention.", "options.", "model.attention_options.")
"""Keys below these are a backend's own options."""
ONE_RUN_ALONE = {
    "logger.name": "a name of one run; each cell goes by the name of its folder (logger.group is one for all)"
}
"""What a command with several runs does not take, and why."""

__all__ = ["compose", "from_dict", "load_config", "to_dict", "to_yaml", "validate"]


def compose(
    kind: str, overrides: Sequence[str] = (), *, folders: Sequence[str | Path] = (), load_backends: bool = True
) -> RunConfig:
    """The configuration of a run, of a comparison or of one cell of a sweep.

    Args:
        kind: "train", "compare" or "sweep".
        overrides: KEY=VALUE in Hydra's syntax: ``attention=linear``, ``model.n_layers=2``, ``attention.chunk=64``.
        folders: more folders with the same groups, such as one's own ``experiment/mine.yaml``.
        load_backends: check the values of a backend's own options too, which imports torch where one differs from its
            default. A chosen plugin is loaded anyway.

    Raises:
        RequestError: every fault of the request at once.
    """
    demand(
        "this cannot be composed",
        text("kind", kind, tuple(groups.SCHEMAS)),
        texts("overrides", overrides),
        paths("folders", folders),
    )
    places = [Path(folder).expanduser().absolute() for folder in folders]
    found = [f"{place}: no such folder" for place in places if not place.is_dir()]
    places = [place for place in places if place.is_dir()]
    usable: list[str] = []
    attention: list[str] = []
    for parsed in parse_overrides(overrides, found):
        override = as_written(parsed, groups.SCHEMAS[kind])
        if override.key_or_group.partition(".")[0] == "attention":
            attention.append(override.input_line)
        wrong = _override_faults(kind, override, places)
        found += wrong
        if not wrong and override.input_line != "experiment=null":  # what it is anyway
            usable.append(_forced(override))
    arguments, wrong = read_settings(groups.SCHEMAS[kind], compose_plain(kind, usable, places))
    found += wrong
    if not wrong:
        cfg = groups.SCHEMAS[kind](**arguments)
        if cfg.model.attention_pattern and attention:
            found.append(
                f"{' '.join(attention)} would change nothing: model.attention_pattern names the attention of every layer "
                "(model.attention_options has their options, model.attention_pattern=[] takes the pattern away)"
            )
        found += _fill_options(cfg, load_backends)
        try:
            cfg = identified(cfg)
        except RequestError as error:
            found += [error.message, *error.reasons]
        if isinstance(cfg, CompareConfig) and attention and not _is_compared(cfg):
            found.append(
                f"{' '.join(attention)} would change nothing: {cfg.attention.name} is not among the backends "
                f"{', '.join(cfg.backends)}"
            )
        if cfg.run_dir == "auto" and not isinstance(cfg, SweepConfig):  # its folder depends on all of its cells
            cfg.run_dir = default_folder(cfg)
        found += faults(cfg) + machine_faults(cfg)
    _raise(found)
    return cfg


def default_folder(cfg: RunConfig) -> str:
    """The same settings find the same folder again, those of more steps the one with the shorter run, which goes on; a
    comparison's does not depend on which cells it has."""
    values, text = to_dict(cfg), ""
    if cfg.task.name == "text" and cfg.data.name == "files" and not data_problems(cfg.data):
        values["text"] = text = text_sha256(
            cfg.data
        )  # a file that was edited is another run, one that was moved is not
    whole = cfg.trainer.restart
    if isinstance(cfg, CompareConfig):
        from attnzoo.comparison.plan import OF_CELLS, common_settings

        values = {key: value for key, value in values.items() if key not in OF_CELLS}
        name = f"runs/compare-{config_hash(values)[:6]}"
        asked = {"swept": [], **flat(to_dict(cfg), leave_out=OF_CELLS)}
        return auto_folder(name, lambda folder: common_settings(folder, text), asked, split=False, whole=whole)
    name = f"runs/{file_name(f'{cfg.attention.name}-seed{cfg.seed}-{config_hash(values)[:6]}', keep_case=True)}"
    return auto_folder(name, lambda folder: run_settings(folder, text), flat_settings(cfg), split=True, whole=whole)


def validate(cfg: RunConfig) -> None:
    """Check a configuration made by hand as `compose` checks its own, and give the backend's options their defaults.

    Raises:
        RequestError: every fault at once.
    """
    _raise(_fill_options(cfg, True) + faults(cfg) + machine_faults(cfg))


def _override_faults(kind: str, override: Any, folders: Sequence[Path]) -> list[str]:
    """What is wrong with one override: its key, its choice, or the type of its value."""
    cls, key, text = groups.SCHEMAS[kind], override.key_or_group, override.input_line
    if "_target_" in text:
        return [f"{text}: a configuration names things, it never runs code"]
    if override.package is not None or override.is_delete():
        return [f"{text!r} is not KEY=VALUE"]
    if override.is_sweep_override():
        return [_several(kind, override)]
    if kind != "train" and key in ONE_RUN_ALONE:
        return [f"{text}: {ONE_RUN_ALONE[key]}"]
    if kind == "compare" and key == "seed":
        return [
            f"{text} would train no seed {text.partition('=')[2]}: attnzoo compare takes seeds=[{text.partition('=')[2]}]"
        ]
    value = plain(override.value())
    if key in groups.GROUPS and not isinstance(value, dict):
        free = text == "experiment=null" or value in groups.choices(key, folders)
        return [] if free else [groups.unknown_choice(key, text.partition("=")[2], folders)]
    top, _, rest = key.partition(".")
    if top == "attention":
        return [] if rest != "name" else [f"{text}: choose a backend with attention={value}"]
    free = key == "options" or key.startswith(FREE)
    if not free and key not in groups.GROUPS and not groups.is_key(key, cls):
        return [groups.unknown_key(key, cls)]
    if isinstance(value, str) and "${" in value:
        return []  # checked once it is resolved
    return read(cls, _nested(key, value))[1]


def _is_compared(cfg: CompareConfig) -> bool:
    """Whether the backend of ``attention``, whose options it may have, is among those compared."""
    return cfg.attention.name in {member for name in cfg.backends for member in hybrid_parts(name)}


def _nested(key: str, value: Any) -> Any:
    """{'a': {'b': value}} for 'a.b'."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def _several(kind: str, override: Any) -> str:
    """KEY=A,B where one run is asked for: the list that was meant, or the command that runs one after another."""
    key, _, values = override.input_line.lstrip("+").partition("=")
    if not read(groups.SCHEMAS[kind], _nested(key, override.value().list if override.is_choice_sweep() else ""))[1]:
        remedy = f"a list is written {key}=[{values}]"
    elif kind == "compare" and (plural := {"attention": "backends", "seed": "seeds"}.get(key)):
        remedy = f"attnzoo compare takes {plural}=[{values}]"
    else:
        remedy = "attnzoo sweep runs every combination"
    return f"{override.input_line} names several values: {remedy}"


def _forced(override: Any) -> str:
    """The override in the form Hydra takes; a backend's options are checked later, against the backend itself."""
    text = override.input_line.lstrip("+")
    return f"++{text}" if override.key_or_group.startswith(FREE) else text


def _fill_options(cfg: RunConfig, load_backends: bool) -> list[str]:
    """Give the chosen backends every option they have, and find what is wrong with backends and their options."""
    known, found = groups.backend_names(), []
    entries = pattern_entries(cfg.model)
    asked = [choice.name for choice in entries.values() or [cfg.attention]]
    if isinstance(cfg, CompareConfig):
        cfg.backends = [hybrid_name(hybrid_parts(name)) for name in cfg.backends]
        members = list(dict.fromkeys(member for name in cfg.backends for member in hybrid_parts(name)))
        if cfg.baseline not in [*known, *cfg.backends]:
            found.append(unknown("baseline", cfg.baseline, known))
        for name in members:
            if name in known and (load_backends or name in cfg.options):
                given = cfg.options.get(name, {})
                found += _option_faults(name, given, load_backends, f"options.{name}")[1]
        asked += members
    found += [unknown_backend(name, known) for name in dict.fromkeys(asked) if name not in known]
    match = cfg.model.match_parameters
    if match is not None and match not in known and parameter_number(match) is None:
        found.append(
            f"model.match_parameters={match}: a number of parameters, or a backend; {unknown('backend', match, known)}"
        )
    places = {f"model.attention_options.{entry}": choice for entry, choice in entries.items()}
    for path, choice in (places or {"attention": cfg.attention}).items():
        if choice.name in known:
            choice.options, wrong = _option_faults(choice.name, choice.options, load_backends, path)
            found += wrong
    for entry, choice in entries.items():
        cfg.model.attention_options[entry] = {"name": choice.name, **choice.options}
    cfg.attention = named(cfg.model, cfg.attention)
    return list(dict.fromkeys(found))


def _option_faults(
    name: str, given: dict[str, Any], load_backends: bool, path: str
) -> tuple[dict[str, Any], list[str]]:
    """All options of a backend, defaults included, and what is wrong with the given ones."""
    preset = groups.preset_options(name)
    unchanged = preset is not None and repr(preset | given) == repr(preset)  # by repr: True is not 1
    if preset is not None and (unchanged or not load_backends):
        return preset | given, [
            unknown("key", f"{path}.{key}", [f"{path}.{option}" for option in preset])
            for key in given
            if key not in preset
        ]
    from attnzoo import registry

    try:
        options = dataclasses.asdict(registry.parse_options(name, given))
        kernels = registry.get(name).kernels
    except AttnzooError as error:
        return given, error.reasons or [error.message]
    kernel = options.get("kernel", "auto")
    return plain(options), [] if kernel in kernels else [unknown(f"kernel of {name}", str(kernel), kernels)]


def _raise(found: list[str]) -> None:
    if len(found) == 1:
        raise RequestError(found[0])
    if found:
        raise RequestError(f"this request has {len(found)} faults", found)
