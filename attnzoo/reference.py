"""What every configuration key means, takes and is by default, from the declarations themselves: `attnzoo help` and
``docs/configuration.md``. No torch here."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from attnzoo import components, groups, options
from attnzoo.components import KINDS
from attnzoo.errors import RequestError
from attnzoo.model import validation as of_model
from attnzoo.settings import SPELT, chosen, plain
from attnzoo.training import validation as of_run

CHOICES = {**of_model.CHOICES, **of_run.CHOICES}
HIDDEN = ("code", "trainer.init_sha256")
"""Filled in, by nobody's hand."""


@dataclass(frozen=True)
class Key:
    """One key, or one component's option.

    Args:
        name: dotted.
        takes: its type in words.
        default: as it is written on a command line; None where it must be given.
        meaning: one sentence or more.
        bounds: what a value must be beyond its type.
        choices: the valid values where they are a list.
        commands: those that have it; empty is all that run a configuration.
        of: the component whose option it is, ``kind name``.
    """

    name: str
    takes: str
    default: str | None
    meaning: str
    bounds: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    of: str = ""


def settings() -> Iterator[Key]:
    """Every key but the components' own options, each once."""
    there = {command: {each[0]: each for each in _fields(cls)} for command, cls in groups.SCHEMAS.items()}
    kinds = {name: kind for cls in groups.SCHEMAS.values() for name, kind in groups.component_keys(cls).items()}
    for name, field, hint, meaning in {name: each for keys in there.values() for name, each in keys.items()}.values():
        if name not in HIDDEN:
            commands = [command for command, keys in there.items() if name in keys]
            own = () if len(commands) == len(there) else tuple(commands)
            choices = CHOICES.get(name) or (components.names(kinds[name]) if name in kinds else ())
            yield Key(name, takes(hint), _default(field), meaning, tuple(_bounds(name)), tuple(choices), own)


def component_options(names: dict[str, Sequence[str]] | None = None) -> Iterator[Key]:
    """The options of components, under each group that names one of their kind.

    Args:
        names: kind -> components to take; all that can be asked for by default. Those of plug-ins are imported.
    """
    for group, kind in open_groups():
        for name in components.names(kind) if names is None else names[kind]:
            cls = components.options_class(kind, name)
            said, hints = options.meanings(cls), typing.get_type_hints(cls)
            own = {field.name: field for field in dataclasses.fields(cls)}
            for option in options.names(cls, kind):
                if option != "kernel" or len(components.declared(kind, name, "kernels")) > 1:
                    choices = components.declared(kind, name, "kernels") if option == "kernel" else ()
                    meaning = said.get(option, "what computes the rule" if option == "kernel" else "").replace(
                        "``", "`"
                    )
                    yield Key(
                        f"{group}.{option}", takes(hints[option]), _default(own[option]), meaning,
                        choices=("auto", *choices) if choices else (), of=f"{KINDS[kind].word} {name}",
                    )  # fmt: skip


def open_groups() -> list[tuple[str, str]]:
    """(group, kind) of each group that holds options of components."""
    found: dict[tuple[str, str], None] = {}
    for name, _, hint, _ in _fields(groups.SCHEMAS["train"], whole=True):
        found |= {(name, kind): None for kind in chosen(hint).values()}
    return list(found)


def describe(word: str) -> list[Key]:
    """What is known of a key: itself, or each component that has an option of the name; of a group all of its keys.

    Raises:
        RequestError: there is no such key, with the nearest.
    """
    known = {key.name: key for key in settings()}
    if word in known:
        return [known[word]]
    own = list(component_options())
    if found := [key for key in own if key.name == word]:
        return found
    if found := [key for key in [*known.values(), *own] if key.name.startswith(f"{word}.")]:
        return found
    same = sorted({key.name for key in [*known.values(), *own] if key.name.rpartition(".")[2] == word})
    if same:
        raise RequestError(f"unknown key {word!r}; did you mean {' or '.join(same)}?")
    siblings = sorted({key.name for key in own if key.name.startswith(f"{word.rpartition('.')[0]}.")})
    raise RequestError(groups.unknown_key(word, groups.SCHEMAS["compare"], siblings))


def takes(hint: Any) -> str:
    """A type in words: 'a whole number, or null'."""
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    words = ["null" if kind is type(None) else _word(kind) for kind in members]
    return f"{', '.join(words[:-1])}, or {words[-1]}" if len(words) > 1 else words[0]


def _word(kind: Any) -> str:
    base, inner = get_origin(kind) or kind, get_args(kind)
    if base is list and inner:
        plural = {str: "texts", int: "whole numbers", float: "numbers"}
        return f"a list of {plural.get(inner[0], 'values')}"
    if base is tuple and inner:
        return f"a list of {len(inner)} numbers"
    return SPELT.get(base, "any value")


def _default(field: dataclasses.Field) -> str | None:
    if field.default_factory is not dataclasses.MISSING:
        return written(field.default_factory())
    return None if field.default is dataclasses.MISSING else written(field.default)


def written(value: Any) -> str:
    """A value as it is written on a command line."""
    value = plain(value)
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    spelt = {None: "null", True: "true", False: "false", "": "''"}
    return (
        spelt[value] if value is None or isinstance(value, bool) or value == "" else "{}" if value == {} else str(value)
    )


def _fields(cls: type, path: str = "", whole: bool = False) -> Iterator[tuple[str, dataclasses.Field, Any, str]]:
    """(dotted name, field, type, meaning) of each key; with ``whole`` of each group instead."""
    hints, said = typing.get_type_hints(cls), options.meanings(cls)
    for field in dataclasses.fields(cls):
        name, hint = f"{path}{field.name}", hints[field.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            if whole:
                yield name, field, hint, ""
            yield from _fields(hint, f"{name}.", whole)
        elif not whole and not (field.name == "options" and chosen(cls)):
            yield name, field, hint, said.get(field.name, "").replace("``", "`")


def _bounds(name: str) -> Iterator[str]:
    for bounds in (of_run.BOUNDS, of_model.BOUNDS):
        yield from (said for names, _, said in bounds if name in names and not said.startswith("valid:"))
    if name in of_run.LARGEST_OF and name != "seed":
        yield f"must be at most {of_run.LARGEST_OF[name]}"
