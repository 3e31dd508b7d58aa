"""What can be chosen: the backends (head layouts, masks, cost, whether they run on this machine) and components of every kind.

attnzoo list                 everything
attnzoo list positions       one kind
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from attnzoo.commands import add_device, add_json, print_json
from attnzoo.components import KINDS
from attnzoo.errors import RequestError, unknown
from attnzoo.lazy import uncollected
from attnzoo.terminal import one_line, printable

HERE = {"training": "[green]runs[/]", "inference": "[yellow]inference only[/]: ", "none": "[red]no[/]: "}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", metavar="KIND", help=f"one kind alone: {', '.join(KINDS)}")
    add_device(parser)
    add_json(parser)


@uncollected()
def run(arguments: Namespace) -> int:
    if arguments.kind not in (None, *KINDS):
        raise RequestError(unknown("kind", arguments.kind, KINDS))
    from attnzoo import components, registry
    from attnzoo.measure import resolve_device

    device = resolve_device(arguments.device)
    kinds = [arguments.kind] if arguments.kind else list(KINDS)
    backends, broken = [], []
    listed = {kind: [_component(kind, name) for name in components.list_components(kind)] for kind in kinds}
    for name in registry.list_backends() if "attention" in kinds else ():
        try:
            backends.append(describe(name, device))
        except Exception as error:  # a plugin's own refusals: the others are listed all the same
            broken.append(_broken("attention", name, registry.origin(name), one_line(error)))
    for kind in kinds:
        broken += [
            _broken(kind, plugin.name, plugin.distribution, plugin.error) for plugin in components.broken_plugins(kind)
        ]
    if arguments.json:
        print_json({"device": device, "backends": backends, "broken": broken, "components": listed})
    else:
        if "attention" in kinds:
            _print_backends(backends, device)
        _print_others({kind: rows for kind, rows in listed.items() if kind != "attention"})
        _print_broken(broken)
    return 0


def _broken(kind: str, name: str, origin: str, error: str) -> dict[str, str]:
    return {"kind": kind, "name": name, "origin": origin, "error": error}


def _component(kind: str, name: str) -> dict[str, Any]:
    """One component of any kind as plain values."""
    from attnzoo import components, options

    cls = components.get(kind, name)
    return {
        "name": name,
        "about": _sentence(cls.__doc__ or ""),
        "source": cls.source,
        "origin": components.origin(kind, name),
        "options": options.values(cls.Options(), kind),
    }


def describe(name: str, device: str) -> dict[str, Any]:
    """One backend as plain values; ``here``: training, inference or none; ``why_not``: the reasons against training;
    ``absent``: kernels whose library is not there, or not for this device; ``positions``: what positions=auto gives;
    ``initial_memory``: tokens until gates as they start have faded to 1/e, null where none do."""
    from attnzoo import registry
    from attnzoo.kernels.optional import LIBRARIES, missing

    cls = registry.get(name)
    can, default = cls.capabilities, cls.default_kv_heads(8)
    why_not = registry.why_not(name, device=device, training=True)
    inference = not why_not or not registry.why_not(name, device=device, training=False)
    return {
        "name": name,
        "about": (cls.__doc__ or "").strip().partition("\n")[0],
        "source": cls.source,
        "origin": registry.origin(name),
        "heads": ("G ≤ H" if can.grouped_heads else "G = H") + (f", default {default} of 8" if default != 8 else ""),
        "masks": sorted(can.masks),
        "kernels": list(cls.kernels),
        "absent": [
            kernel for kernel in cls.kernels if kernel in LIBRARIES and missing(kernel, device.partition(":")[0])
        ],
        "positions": can.positions,
        "initial_memory": cls.initial_memory(cls.Options()),
        "options": {key: value for key, value in vars(cls.Options()).items() if key != "kernel"},
        "time": can.time,
        "memory": can.memory,
        "state": can.state,
        "here": "training" if not why_not else "inference" if inference else "none",
        "why_not": why_not,
    }


def _sentence(doc: str) -> str:
    """The first sentence of a docstring on one line."""
    paragraph = " ".join(doc.strip().partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0].rstrip(":")


def _console() -> Any:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 160)
    return console


def _table(title: str, *more: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in (title, *more):
        table.add_column(column, overflow="fold", no_wrap=column == title)
    return table


def _print_others(listed: Mapping[str, list[dict[str, Any]]]) -> None:
    """A table a kind: what each is, its options with their defaults, and where it comes from."""
    for kind, rows in listed.items():
        table = _table(KINDS[kind].word, "what it is", "options", "source", "from")
        for row in rows:
            options = ", ".join(f"{key}={'null' if value is None else value}" for key, value in row["options"].items())
            cells = (row["name"], row["about"], options, row["source"], row["origin"])
            table.add_row(*(_escaped(printable(cell)) for cell in cells))
        _console().print(table, highlight=False)


def _print_broken(broken: list[dict[str, str]]) -> None:
    for plugin in broken:
        text = f"[red]{_escaped(plugin['name'])}[/] of {_escaped(plugin['origin'])} failed to import: {_escaped(plugin['error'])}"
        _console().print(printable(text), highlight=False)


def _print_backends(rows: list[dict[str, Any]], device: str) -> None:
    from attnzoo.masks import FIELDS

    table = _table(
        "backend", "heads", "masks", "positions", "kernels (absent)", "time", "memory", "state",
        f"on this machine ({device})", "from",
    )  # fmt: skip
    for row in rows:
        masks = "all" if set(row["masks"]) == FIELDS else ", ".join(row["masks"])
        own = (kernel for kernel in row["kernels"] if kernel != "auto")
        kernels = ", ".join(f"({kernel})" if kernel in row["absent"] else kernel for kernel in own)
        exponents = [growth(row[key]) for key in ("time", "memory", "state")]
        here = HERE[row["here"]] + _escaped("; ".join(row["why_not"]))
        cells = (row["name"], row["heads"], masks, row["positions"], kernels, *exponents, here, row["origin"])
        table.add_row(*map(printable, cells))
    _console().print(table, highlight=False)


def growth(exponent: float) -> str:
    """How a cost grows with the tokens T."""
    return {0.0: "1", 1.0: "T", 2.0: "T²"}.get(exponent, f"T^{exponent:g}")


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
