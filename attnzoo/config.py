"""From a person's words to a typed, validated configuration: Hydra's groups and overrides, faults in plain language."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attnzoo import components, groups
from attnzoo.arguments import demand, paths, text, texts
from attnzoo.composition import as_written, compose_plain, in_its_file, parse_overrides
from attnzoo.data.sources import local_sha256
from attnzoo.errors import AttnzooError, RequestError, unknown
from attnzoo.from_files import SPEC, code_of, register_file
from attnzoo.measure.record import config_hash
from attnzoo.model.config import (
    AUTO,
    PositionsConfig,
    hybrid_name,
    hybrid_parts,
    named,
    parameter_number,
    pattern_entries,
    positions_entries,
)
from attnzoo.names import file_name
from attnzoo.open_groups import choice_faults, names_in, open_groups, option_names, unknown_name, without_foreign
from attnzoo.options import values
from attnzoo.settings import dotted, plain, read
from attnzoo.tasks.build import reads_text
from attnzoo.training.again import auto_folder, flat, flat_settings, run_settings
from attnzoo.training.config import (
    CompareConfig,
    RunConfig,
    SweepConfig,
    from_dict,
    load_config,
    targets,
    to_dict,
    to_yaml,
)
from attnzoo.training.init_from import identified
from attnzoo.training.validation import faults, machine_faults

BY_NAME = ("options.", "model.attention_options.", "positions.pattern_options.", "model.projection_options.")
"""Below these keys stand names of backends, and below them their own options."""
BY_ENTRY = {"model.attention_options": "attention", "positions.pattern_options": "positions"}
"""Below these keys stand entries of a pattern, whose ``name`` is a component."""
ONE_RUN_ALONE = {
    "logger.name": "a name of one run; each cell goes by the name of its folder (logger.group is one for all)"
}
"""What a command with several runs does not take, and why."""

__all__ = ["compose", "from_dict", "load_config", "to_dict", "to_yaml", "validate"]


def compose(kind: str, overrides: Sequence[str] = (), *, folders: Sequence[str | Path] = ()) -> RunConfig:
    """The configuration of a run, of a comparison or of one cell of a sweep.

    Args:
        kind: "train", "compare" or "sweep".
        overrides: KEY=VALUE in Hydra's syntax: ``attention=linear``, ``model.n_layers=2``, ``attention.chunk=64``. Where a
            component is named, ``FILE.py:CLASS`` names one of a file, which is run.
        folders: more folders with the same groups, such as one's own ``experiment/mine.yaml``.

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
    cls = groups.SCHEMAS[kind]
    usable: list[str] = []
    given: dict[str, str] = {}
    for parsed in parse_overrides(with_files(overrides, kind, found), found):
        override = as_written(parsed, cls)
        wrong = _override_faults(kind, override, places)
        found += wrong
        if not wrong:
            given |= dict.fromkeys(_given(override, places), override.input_line)
            usable += (
                [] if override.input_line == "experiment=null" else [_forced(override, places)]
            )  # what it is anyway
    composed = compose_plain(kind, usable, places)
    wrong = [f"{where}: a configuration names things, it never runs code" for where in targets(composed)]
    arguments: dict[str, Any] = {}
    if not wrong:
        arguments, wrong = read(cls, {key: value for key, value in composed.items() if groups.is_key(key, cls)})
        wrong += [groups.unknown_key(key, cls) for key in composed if not groups.is_key(key, cls)]
    wrong = [in_its_file(line, usable, places) for line in wrong]
    found += wrong
    if not wrong:
        cfg = cls(**arguments)
        attention = [line for key, line in given.items() if key.partition(".")[0] == "attention"]
        if cfg.model.attention_pattern and attention:
            found.append(
                f"{' '.join(attention)} would change nothing: model.attention_pattern names the attention of every layer "
                "(model.attention_options has their options, model.attention_pattern=[] takes the pattern away)"
            )
        schemes = [line for key, line in given.items() if key in ("positions", "positions.name")]
        if cfg.positions.pattern and schemes:
            found.append(
                f"{' '.join(schemes)} would change nothing: positions.pattern names the scheme of every layer "
                "(positions.pattern=[] takes the pattern away)"
            )
        found += [in_its_file(line, usable, places) for line in fill(cfg, given)]
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
        found += [in_its_file(line, usable, places) for line in faults(cfg)] + machine_faults(cfg)
    _raise(found)
    return cfg


def with_files(overrides: Sequence[str], kind: str, found: list[str]) -> list[str]:
    """The overrides with the names of components where files were named, which are run for it."""
    known, written = groups.component_keys(groups.SCHEMAS[kind]), []

    def name(of: str, match: re.Match[str]) -> str:
        try:
            return register_file(of, match["file"], match["cls"])
        except RequestError as error:
            found.append("; ".join([error.message, *error.reasons]))
            return match[0]

    for override in overrides:
        key, equals, value = override.partition("=")
        by_entry = next((kind for path, kind in BY_ENTRY.items() if f"{key}.".startswith(f"{path}.")), None)
        of, before = known.get(key.lstrip("+"), by_entry), len(found)
        text = f"{key}{equals}{SPEC.sub(partial(name, of), value)}" if of and equals else override
        written += [text] if len(found) == before else []
    return written


def default_folder(cfg: RunConfig) -> str:
    """The same settings find the same folder again, those of more steps the one with the shorter run, which goes on; a
    comparison's does not depend on which cells it has."""
    values, text = to_dict(cfg), ""
    if _has_text(cfg) and (text := local_sha256(cfg.data)):
        values["text"] = text  # a file that was edited is another run, one that was moved is not
    whole = cfg.trainer.restart
    if isinstance(cfg, CompareConfig):
        from attnzoo.comparison.plan import OF_CELLS, common_settings

        values = {key: value for key, value in values.items() if key not in OF_CELLS}
        name = f"runs/compare-{config_hash(values)[:6]}"
        asked = {"swept": [], **flat(to_dict(cfg), leave_out=OF_CELLS)}
        return auto_folder(name, lambda folder: common_settings(folder, text), asked, split=False, whole=whole)
    name = f"runs/{file_name(f'{cfg.attention.name}-seed{cfg.seed}-{config_hash(values)[:6]}', keep_case=True)}"
    return auto_folder(name, lambda folder: run_settings(folder, text), flat_settings(cfg), split=True, whole=whole)


def _has_text(cfg: RunConfig) -> bool:
    """Whether it is known to read a text: a task that there is not is said elsewhere."""
    return cfg.task.name in components.names("task") and reads_text(cfg.task)


def validate(cfg: RunConfig) -> None:
    """Check a configuration made by hand as `compose` checks its own, and give the components' options their defaults.

    Raises:
        RequestError: every fault at once.
    """
    _raise(fill(cfg, None) + faults(cfg) + machine_faults(cfg))


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
    group = groups.group_of(key)
    if group is not None and not isinstance(value, dict):
        free = text == "experiment=null" or value in groups.choices(group, folders)
        return [] if free else [groups.unknown_choice(group, text.partition("=")[2], folders)]
    if key == "options" or key.startswith(BY_NAME) or (groups.is_open(key, cls) and not groups.is_key(key, cls)):
        return []  # a component's options: checked once it is known
    if not groups.is_key(key, cls):
        return [groups.unknown_key(key, cls)]
    if isinstance(value, str) and "${" in value:
        return []  # checked once it is resolved
    return read(cls, _nested(key, value))[1]


def _given(override: Any, folders: Sequence[Path]) -> Iterator[str]:
    """The dotted keys that a person has set by this override."""
    key, value = override.key_or_group, override.value()
    yield key
    if isinstance(value, dict):
        for name in dotted(plain(value)):
            yield f"{key}.{name}"


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
    if override.is_choice_sweep() and groups.holds_list(key, groups.SCHEMAS[kind]):
        remedy = f"a list is written {key}=[{values}]"
    elif kind == "compare" and (plural := {"attention": "backends", "seed": "seeds"}.get(key)):
        remedy = f"attnzoo compare takes {plural}=[{values}]"
    else:
        remedy = "attnzoo sweep runs every combination"
    return f"{override.input_line} names several values: {remedy}"


def _forced(override: Any, folders: Sequence[Path]) -> str:
    """The override in the form Hydra takes: what is a key is checked by the classes, not by what is composed so far."""
    key, _, value = override.input_line.lstrip("+").partition("=")
    group = groups.group_of(override.key_or_group)
    return f"{group}={value}" if group is not None and not isinstance(override.value(), dict) else f"++{key}={value}"


def fill(cfg: RunConfig, given: Mapping[str, str] | None) -> list[str]:
    """Give the chosen components every option they have, and find what is wrong with the choice and with their options.

    Args:
        given: the keys that a person has set; an option beside these that another component of the kind has is left out. None:
            all of them.
    """
    found: list[str] = []
    if isinstance(cfg, CompareConfig):
        found += _fill_comparison(cfg)
    entries = pattern_entries(cfg.model)
    for path, group in open_groups(cfg):
        if path == "attention" and entries:
            continue
        if wrong := choice_faults(path, group):
            found += wrong
            continue
        try:
            found += without_foreign(
                path, group, given if given is not None else {f"{path}.{key}" for key in group.options}
            )
            known = {key for kind, name in names_in(group) for key in option_names(kind, name)}
            for key in [key for key in group.options if key not in known]:
                del group.options[key]  # it has been said
            for kind, name in names_in(group):
                found += _fill(group.options, kind, name, f"{path}.")
        except AttnzooError as error:  # a plug-in that cannot be imported
            found += error.reasons or [error.message]
    for entry, choice in entries.items():
        path = f"model.attention_options.{entry}"
        found += _fill_backend(choice.options, choice.name, path)
        cfg.model.attention_options[entry] = {"name": choice.name, **choice.options}
    found += _fill_positions(cfg.positions)
    match = cfg.model.match_parameters
    if match is not None and match not in groups.backend_names() and parameter_number(match) is None:
        found.append(
            f"model.match_parameters={match}: a number of parameters, or a backend; {unknown_name('attention', match)}"
        )
    cfg.attention = named(cfg.model, cfg.attention)
    cfg.code, nowhere = code_of(used_components(cfg))
    if nowhere and isinstance(cfg, (CompareConfig, SweepConfig)):
        found += [
            f"{each} was defined in no file: put it into one, so that processes of cells can import it"
            for each in nowhere
        ]
    return list(dict.fromkeys(found))


def _fill_positions(positions: PositionsConfig) -> list[str]:
    """The options of each entry of the pattern that has some of its own, those of the group among them."""
    found: list[str] = []
    if positions.pattern:
        positions.name = AUTO  # the pattern takes its place
    for entry, scheme in positions_entries(positions).items():
        if entry not in positions.pattern_options or scheme.name not in components.names("positions"):
            continue  # what is unknown is said where the schemes of the layers are checked
        path = f"positions.pattern_options.{entry}"
        known = option_names("positions", scheme.name)
        wrong = [
            unknown("key", f"{path}.{key}", [f"{path}.{k}" for k in known])
            for key in scheme.options
            if key not in known
        ]
        scheme.options = {key: value for key, value in scheme.options.items() if key in known}
        found += wrong + _fill(scheme.options, "positions", scheme.name, f"{path}.")
        positions.pattern_options[entry] = {"name": scheme.name, **scheme.options}
    return found


def used_components(cfg: RunConfig) -> list[tuple[str, str]]:
    """(kind, name) of all that the configuration chooses."""
    used = [pair for _, group in open_groups(cfg) for pair in names_in(group)]
    used += [("projection", cfg.model.projection)] if cfg.model.projection else []
    used.append(("optimizer", cfg.probe.optimizer))
    backends = [choice.name for choice in pattern_entries(cfg.model).values()]
    if isinstance(cfg, CompareConfig):
        backends += [member for name in cfg.backends for member in hybrid_parts(name)]
    return list(dict.fromkeys([*used, *(("attention", name) for name in backends)]))


def _fill_comparison(cfg: CompareConfig) -> list[str]:
    known = groups.backend_names()
    cfg.backends = [hybrid_name(hybrid_parts(name)) for name in cfg.backends]
    members = dict.fromkeys(member for name in cfg.backends for member in hybrid_parts(name))
    found = [] if cfg.baseline in [*known, *cfg.backends] else [unknown("baseline", cfg.baseline, known)]
    for name in members:
        found += _fill_backend(dict(cfg.options.get(name, {})), name, f"options.{name}")
    return found


def _fill_backend(options: dict[str, Any], name: str, path: str) -> list[str]:
    if name not in groups.backend_names():
        return [unknown_name("attention", name)]
    try:
        known = option_names("attention", name)
        wrong = [
            unknown("key", f"{path}.{key}", [f"{path}.{each}" for each in known]) for key in options if key not in known
        ]
        return wrong or _fill(options, "attention", name, f"{path}.")
    except AttnzooError as error:
        return error.reasons or [error.message]


def _fill(given: dict[str, Any], kind: str, name: str, path: str) -> list[str]:
    """All options of one component, defaults included, put into ``given``, and what is wrong with those that are there."""
    known = option_names(kind, name)
    parsed, wrong = components.read_options(kind, name, {key: given[key] for key in known if key in given}, path)
    if parsed is not None:
        for key in known:  # in the order of their declaration
            given.pop(key, None)
        given |= values(parsed, kind)
    return wrong


def _raise(found: list[str]) -> None:
    found = list(dict.fromkeys(found))
    if len(found) == 1:
        raise RequestError(found[0])
    if found:
        raise RequestError(f"this request has {len(found)} faults", found)
