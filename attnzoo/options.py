"""A component's own settings, as a frozen dataclass beside its class: names, types, defaults, meanings. No torch here."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from attnzoo.errors import RequestError
from attnzoo.settings import plain, read
from attnzoo.terminal import one_line


@dataclass(frozen=True)
class Options:
    """The settings of a component; one with settings of its own extends this. The docstring says ``name: meaning`` of each.
    Values that make no sense raise `RequestError` in ``__post_init__``.

    ``kernel`` is of backends alone: what computes the rule. ``others``: settings beside the defaults by which another path of the
    code runs; the conformance suite draws them too.
    """

    others: ClassVar[tuple[dict[str, Any], ...]] = ()

    kernel: str = "auto"


def names(cls: type[Options], kind: str) -> list[str]:
    """The options that a component of this kind has; the kernel is a backend's."""
    return [f.name for f in fields(cls) if kind == "attention" or f.name != "kernel"]


def values(options: Options, kind: str) -> dict[str, Any]:
    """The options as plain values, the form of ``config.yaml``."""
    return {name: plain(getattr(options, name)) for name in names(type(options), kind)}


def made(cls: type[Options], given: dict[str, Any]) -> tuple[Options | None, list[str]]:
    """The options, or why these values make no sense together."""
    try:
        return cls(**given), []
    except RequestError as error:
        return None, error.reasons or [error.message]
    except Exception as error:  # other packages raise what they like
        return None, [one_line(error)]


def definition_faults(cls: Any) -> list[str]:
    """What is wrong with a class of options, its annotations and its defaults."""
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls) and issubclass(cls, Options)):
        return ["its Options is not a dataclass that extends attnzoo.Options"]
    try:
        faults = read(cls, plain(cls()), "Options.")[1]
    except Exception as error:  # their code: a field without a default, an annotation that means nothing
        return [f"its Options cannot be made from its defaults: {one_line(error)}"]
    return [f"a default of its Options: {each}" for each in faults]


def meanings(cls: type) -> dict[str, str]:
    """What each option means, from ``name: meaning`` (``name, other: meaning`` of both) in the docstrings of the class and of
    those that it extends.

    >>> meanings(type("Window", (), {"__doc__": "window: W, keys of the window. sinks: first tokens, always seen."}))
    {'window': 'W, keys of the window.', 'sinks': 'first tokens, always seen.'}
    """
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        known = "|".join(f.name for f in fields(each)) if dataclasses.is_dataclass(each) else r"[a-z_]+"
        text = " ".join((vars(each).get("__doc__") or "").split())
        parts = re.split(rf"(?:^|(?<=[\s(.;]))((?:{known})(?:, (?:{known}))*): ", text)
        for listed, meaning in zip(parts[1::2], parts[2::2], strict=True):
            found |= dict.fromkeys(listed.split(", "), meaning.strip().rstrip(";"))
    return found


def cut_down(options: Options, sizes: Sequence[int] = (4, 8, 16)) -> Options:
    """The options with every count of 8 and more (blocks, chunks, windows, ranks) cut to the first of ``sizes`` that builds."""
    counts = {f.name: getattr(options, f.name) for f in fields(options) if f.name != "seed"}
    large = {name: count for name, count in counts.items() if type(count) is int and count >= 8}
    for size in sizes:
        try:
            return replace(options, **{name: min(count, size) for name, count in large.items()})  # type: ignore[arg-type]
        except ValueError:  # as RequestError is; other packages raise the plain one
            continue
    return options
