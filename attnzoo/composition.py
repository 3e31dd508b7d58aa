"""Hydra: overrides and groups in, plain values out, its complaints in plain words. It is imported when it is used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from attnzoo import groups
from attnzoo.config_source import limited_scheme
from attnzoo.errors import RequestError
from attnzoo.files import read_yaml
from attnzoo.settings import dotted, plain
from attnzoo.training.config import RunConfig

NO_ENVIRONMENT = (
    "a configuration reads no environment variables (oc.env), since what it holds is written into records and logs; give the "
    "value on the command line"
)


def compose_plain(kind: str, overrides: list[str], folders: Sequence[Path]) -> dict[str, Any]:
    """What Hydra composes, as plain values with every interpolation resolved."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    store = ConfigStore.instance()
    store.store("defaults", defaults(kind))  # for interpolations: what is valid is said by the classes alone
    for group in groups.GROUPS:
        for name in set(groups.choices(group, folders)) - set(groups.presets(group, folders)):
            store.store(name, {"name": name}, group=group)  # a component without a preset
    if folders:
        places = ",".join(f"{limited_scheme()}://{folder}" for folder in folders)
        overrides = [*overrides, f"hydra.searchpath=[{places}]"]
    try:
        with (
            _without_environment(),
            _hydra_to_itself(),
            initialize_config_dir(str(groups.conf_dir()), version_base="1.3"),
        ):
            values = OmegaConf.to_container(hydra_compose(kind, overrides), resolve=True)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise RequestError(_in_plain_words(error, groups.SCHEMAS[kind])) from error
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items() if key != "experiment"}


def in_its_file(line: str, overrides: Sequence[str], folders: Sequence[Path]) -> str:
    """A fault with the file in front of it that has its key, among the files of a person's own folders that were chosen."""
    if not (named := re.search(r"unknown key '([^']+)'|^([\w.]+)[=:]", line)):
        return line
    key = named[1] or named[2]
    for group, choice in (override.split("=", 1) for override in overrides if not override.startswith("+")):
        for file in (folder / group / f"{choice}.yaml" for folder in folders):
            values = read_yaml(file) if file.is_file() else None
            if isinstance(values, dict) and key in {*dotted(values), *dotted({group: values})}:
                return f"{group}/{choice}: {line}"
    return line


def parse_overrides(overrides: Sequence[str], found: list[str]) -> list[Any]:
    """Hydra's overrides, parsed; what is no KEY=VALUE is added to the faults ``found``."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, parsed = OverridesParser.create(), []
    given: dict[str, list[str]] = {}
    for text in overrides:
        if "=" not in text or text.startswith("~"):
            group = next((g for g in groups.GROUPS if text in groups.choices(g)), None)
            hint = f"; did you mean {group}={text}?" if group else ""
            found.append(f"{text!r} is not KEY=VALUE{hint}")
            continue
        try:
            parsed.append(parser.parse_override(text))
            given.setdefault(parsed[-1].key_or_group, []).append(text)
        except HydraException:
            found.append(
                f"{text!r} cannot be read: quote values with spaces or special characters, as in KEY='\"a b\"'"
            )
    found += [f"{key} is given more than once: {' '.join(texts)}" for key, texts in given.items() if len(texts) > 1]
    return parsed


def as_written(override: Any, cls: type[RunConfig]) -> Any:
    """The override with a text (or a group's choice) as it was written: Hydra reads 83e1012 as infinity and 0x10 as 16.

    ``null`` stays nothing, for keys that may have no value.
    """
    name = override.key_or_group
    if override.is_sweep_override() or not (name in groups.GROUPS or groups.holds_text(name, cls)):
        return override
    key, _, raw = override.input_line.partition("=")
    value = override.value()
    if isinstance(value, NOT_TEXT):
        raw = _quoted(raw)
    elif isinstance(value, list) and any(isinstance(item, NOT_TEXT) for item in value):
        parts = re.findall(r"""\s*((?:'(?:\\.|[^'])*'|"(?:\\.|[^"])*"|[^,'"])+)""", raw.strip()[1:-1])
        if len(parts) == len(value):
            held = zip(parts, value, strict=True)
            raw = f"[{','.join(_quoted(part) if isinstance(item, NOT_TEXT) else part for part, item in held)}]"
    return parse_overrides([f"{key}={raw}"], [])[0]


NOT_TEXT = (bool, int, float)


def _quoted(raw: str) -> str:
    return f"'{raw.strip()}'"


@cache
def defaults(kind: str) -> dict[str, Any]:
    """Every key that has a default, as plain values."""
    cls, hints = groups.SCHEMAS[kind], get_type_hints(groups.SCHEMAS[kind])
    groups_ = {f.name: hints[f.name]() for f in fields(cls) if f.name in groups.GROUPS and f.name != "attention"}
    rest = {f.name: f.default for f in fields(cls) if f.default is not MISSING}
    listed = {
        f.name: f.default_factory()
        for f in fields(cls)
        if f.name not in (*groups_, "code") and f.default_factory is not MISSING
    }
    return plain({**rest, **listed, **groups_})


@contextmanager
def _hydra_to_itself() -> Iterator[None]:
    """Hydra holds one global instance; that of a surrounding Hydra program is set aside and put back."""
    from hydra.core.global_hydra import GlobalHydra

    theirs = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = theirs


@contextmanager
def _without_environment() -> Iterator[None]:
    """What a configuration says is written into files and logs; a variable of the environment may be a secret."""
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    def refuse(*names: str) -> str:
        raise RequestError(NO_ENVIRONMENT)

    OmegaConf.register_new_resolver("oc.env", refuse, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _in_plain_words(error: Exception, cls: type[RunConfig]) -> str:
    """What a configuration file or an interpolation did wrong, on one line: the file, the key, the cause."""
    text = str(error)
    file = f"{found[1]}: " if (found := re.match("In '(.+?)'", text)) else ""
    key = found[1] if (found := re.search(r"full_key: (\S+)", text)) else ""
    if NO_ENVIRONMENT in text:
        return f"{file}{key}: {NO_ENVIRONMENT}"
    if key.endswith("_target_"):
        return f"{file}{key}: a configuration names things, it never runs code"
    if key and not groups.is_key(key, cls):
        return file + groups.unknown_key(key, cls)
    if choice := re.search("Could not find '(.+?)/(.+?)'", text):
        return groups.unknown_choice(choice[1], choice[2])
    lines = [
        line.strip()
        for line in text.splitlines()
        if not re.match(r"In '|\s+(full_key|object_type|reference_type)", line)
    ]
    return f"{file}{key + ': ' if key else ''}{' '.join(lines) or text}"
