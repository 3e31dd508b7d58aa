"""Plain values (a command line, a YAML file) as typed dataclasses, with every fault at once. No torch."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from attnzoo.errors import unknown

SPELT = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a group of keys",
}


def chosen(cls: Any) -> dict[str, str]:
    """Of a group of keys that names components: field -> kind. Its keys beyond its own fields are their options, which its
    field ``options`` holds; in a file they lie beside the others."""
    return getattr(cls, "chosen", {})


def read(cls: type, values: Any, path: str = "") -> tuple[dict[str, Any], list[str]]:
    """Keyword arguments for a dataclass from plain values, and every fault: unknown keys and values of another type.

    A faulty key is left out of the arguments. ``path`` ("model.") is put before key names in the faults.
    """
    if not isinstance(values, Mapping):
        return {}, [f"{path.rstrip('.')}={values!r}: must be {SPELT[dict]}"]
    hints = get_type_hints(cls)
    is_open = bool(chosen(cls))
    known = [f.name for f in dataclasses.fields(cls) if not (is_open and f.name == "options")]
    arguments: dict[str, Any] = {"options": {}} if is_open else {}
    faults: list[str] = []
    for key, value in values.items():
        if is_open and key == "options" and isinstance(value, Mapping):  # exports of 0.1 keep them apart
            arguments["options"] |= plain(value)
            continue
        if key not in known and is_open:
            arguments["options"][str(key)] = plain(value)
            continue
        if key not in known:
            faults.append(unknown("key", f"{path}{key}", [f"{path}{name}" for name in known]))
            continue
        before = len(faults)
        converted = _convert(hints[key], value, f"{path}{key}", faults)
        if len(faults) == before:
            arguments[key] = converted
    return arguments, faults


def plain(value: Any) -> Any:
    """Dataclasses, tuples and mappings as what JSON and YAML know."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return found | found.pop("options") if chosen(type(value)) else found
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def leaves(values: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """('trainer.max_steps', 300), ('seeds[0]', 0), …"""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from leaves(value, f"{key}.{name}" if key else str(name))
    elif isinstance(values, (list, tuple)):
        for n, value in enumerate(values):
            yield from leaves(value, f"{key}[{n}]")
    else:
        yield key, values


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{'trainer.max_steps': 300, …} of nested groups."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        out |= dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return out


def _required(cls: type) -> list[str]:
    """The fields of a dataclass that have no default."""
    none = dataclasses.MISSING
    return [
        f.name
        for f in dataclasses.fields(cls)
        if f.default is none and f.default_factory is none and not (chosen(cls) and f.name == "options")
    ]


def _convert(hint: Any, value: Any, path: str, faults: list[str]) -> Any:
    """The value as the annotated type; appends to ``faults`` where it is something else."""
    if hint is Any:
        return value
    if get_origin(hint) in (Union, types.UnionType):
        if value is None and type(None) in get_args(hint):
            return None
        scalars = [kind for kind in get_args(hint) if kind is not type(None)]
        if len(scalars) > 1:  # a scalar of one type or another; which texts are meant is said where values are checked
            return _convert_scalar(next((k for k in scalars if type(value) is k), scalars[0]), value, path, faults)
        hint = scalars[0]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        arguments, found = read(hint, value, f"{path}.")
        if isinstance(value, Mapping):
            found += [f"{path}.{name} is missing" for name in _required(hint) if name not in value]
        faults.extend(found)
        return None if found else hint(**arguments)
    base = get_origin(hint) or hint
    if base in (list, tuple):
        return _convert_sequence(base, get_args(hint), value, path, faults)
    if base is dict and isinstance(value, Mapping):
        kinds = get_args(hint)
        return {
            str(key): _convert(kinds[1] if kinds else Any, item, f"{path}.{key}", faults) for key, item in value.items()
        }
    return _convert_scalar(base, value, path, faults)


def _convert_sequence(base: type, kinds: tuple, value: Any, path: str, faults: list[str]) -> Any:
    if not isinstance(value, (list, tuple)):
        faults.append(f"{path}={value!r}: must be a list, such as {path}=[{'…' if value is None else value}]")
        return None
    counted = base is tuple and bool(kinds) and kinds[-1] is not Ellipsis
    if counted and len(value) != len(kinds):
        faults.append(f"{path}={list(value)}: must have {len(kinds)} values")
        return None
    each = kinds if counted else (kinds[:1] or (Any,)) * len(value)
    return base(
        _convert(kind, item, f"{path}[{n}]", faults) for n, (kind, item) in enumerate(zip(each, value, strict=True))
    )


def _convert_scalar(base: type, value: Any, path: str, faults: list[str]) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if base is float and isinstance(value, str):  # YAML 1.1 reads 1e-3 as a text
        try:
            return float(value)
        except ValueError:
            pass
    elif base is float and number:
        return float(value)
    elif base is str and number:
        return str(value)
    elif isinstance(value, base) and (base is bool or not isinstance(value, bool)):
        return value
    faults.append(f"{path}={value!r}: must be {SPELT.get(base, base.__name__)}")
    return None
