"""Groups of settings that name components and hold their options: what they name, and whose options theirs are. No torch."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from attnzoo import components, options
from attnzoo.errors import choice_fault, unknown, unknown_backend
from attnzoo.settings import chosen


def open_groups(cfg: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every group that names components, by its dotted path."""
    for f in fields(cfg):
        value = getattr(cfg, f.name)
        if is_dataclass(value):
            if chosen(type(value)):
                yield f"{path}{f.name}", value
            yield from open_groups(value, f"{path}{f.name}.")


def names_in(group: Any) -> Iterator[tuple[str, str]]:
    """(kind, name) of each component whose options a group holds: those that its fields name, unless it says so itself in a
    method ``components``."""
    if own := getattr(group, "components", None):
        yield from own()
        return
    for key, kind in chosen(type(group)).items():
        value = getattr(group, key)
        yield from ((kind, name) for name in ([value] if isinstance(value, str) else value or []))


def choice_faults(path: str, group: Any) -> list[str]:
    """Names of components that there are not."""
    if hasattr(group, "components"):
        return [unknown_name(kind, name) for kind, name in names_in(group) if name not in components.names(kind)]
    found = []
    for key, kind in chosen(type(group)).items():
        known, value = components.names(kind), getattr(group, key)
        for name in [value] if isinstance(value, str) else value or []:
            if name not in known:
                found.append(unknown_name(kind, name) if key == "name" else choice_fault(f"{path}.{key}", name, known))
    return found


def option_faults(path: str, group: Any) -> list[str]:
    """What is wrong with the names of a group and with the options beside them, which it may have left to their defaults."""
    if wrong := choice_faults(path, group):
        return wrong
    found, left = [], dict(group.options)
    for kind, name in names_in(group):
        own = option_names(kind, name)
        found += components.read_options(kind, name, {k: v for k, v in group.options.items() if k in own}, f"{path}.")[
            1
        ]
        left = {key: value for key, value in left.items() if key not in own}
    if left:
        return [*found, *without_foreign(path, replace(group, options=left), {f"{path}.{key}" for key in left})]
    return found


def unknown_name(kind: str, name: str) -> str:
    if kind == "positions":
        return unknown(components.KINDS[kind].word, name, [*components.names(kind), "auto"])
    return (
        unknown_backend(name, components.names(kind))
        if kind == "attention"
        else components.unknown_component(kind, name)
    )


def without_foreign(path: str, group: Any, given: Container[str] = ()) -> list[str]:
    """Leave out of a group's options those that belong to other components of its kinds, unless a person has given them.

    Returns:
        a fault for each that remains and that no chosen component has.
    """
    used = list(names_in(group))
    if any(name not in components.names(kind) for kind, name in used):
        return []  # which options there are is not known here
    known = {option for kind, name in used for option in option_names(kind, name)}
    faults = []
    for key in [key for key in group.options if key not in known]:
        others = [
            name for kind in dict.fromkeys(chosen(type(group)).values()) for name in components.built_in(kind)
            if key in option_names(kind, name)
        ]  # fmt: skip
        if others and f"{path}.{key}" not in given:
            del group.options[key]
            continue
        own = [f"{path}.{each}" for each in (*(f.name for f in fields(group) if f.name != "options"), *known)]
        theirs = f"; it is an option of {', '.join(others)}" if others else ""
        faults.append(unknown("key", f"{path}.{key}", own) + theirs)
    return faults


def option_names(kind: str, name: str) -> list[str]:
    return options.names(components.options_class(kind, name), kind)
