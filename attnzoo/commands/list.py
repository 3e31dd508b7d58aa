"""The backends: which head layouts and masks they take, what they cost, and whether they run on this machine."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from attnzoo.commands import add_device, add_json, print_json
from attnzoo.lazy import uncollected
from attnzoo.terminal import one_line, printable

HERE = {"training": "[green]runs[/]", "inference": "[yellow]inference only[/]: ", "none": "[red]no[/]: "}


def add_arguments(parser: ArgumentParser) -> None:
    add_device(parser)
    add_json(parser)


@uncollected()
def run(arguments: Namespace) -> int:
    from attnzoo import components, registry
    from attnzoo.measure import resolve_device

    device = resolve_device(arguments.device)
    rows, broken = [], []
    for name in registry.list_backends():
        try:
            rows.append(describe(name, device))
        except Exception as error:  # a plugin's own refusals: the others are listed all the same
            broken.append({"name": name, "origin": registry.origin(name), "error": one_line(error)})
    for plugin in components.broken_plugins():
        broken.append({"name": plugin.name, "origin": plugin.distribution, "error": plugin.error})
    if arguments.json:
        print_json({"device": device, "backends": rows, "broken": broken})
    else:
        _print(rows, broken, device)
    return 0


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


def _print(rows: list[dict[str, Any]], broken: list[dict[str, str]], device: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from attnzoo.masks import FIELDS

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 160)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in (
        "backend",
        "heads",
        "masks",
        "positions",
        "kernels (absent)",
        "time",
        "memory",
        "state",
        f"on this machine ({device})",
        "from",
    ):
        table.add_column(title, overflow="fold", no_wrap=title == "backend")
    for row in rows:
        masks = "all" if set(row["masks"]) == FIELDS else ", ".join(row["masks"])
        own = (kernel for kernel in row["kernels"] if kernel != "auto")
        kernels = ", ".join(f"({kernel})" if kernel in row["absent"] else kernel for kernel in own)
        exponents = [growth(row[key]) for key in ("time", "memory", "state")]
        here = HERE[row["here"]] + _escaped("; ".join(row["why_not"]))
        cells = (row["name"], row["heads"], masks, row["positions"], kernels, *exponents, here, row["origin"])
        table.add_row(*map(printable, cells))
    console.print(table, highlight=False)
    for plugin in broken:
        text = f"[red]{_escaped(plugin['name'])}[/] of {_escaped(plugin['origin'])} failed to import: {_escaped(plugin['error'])}"
        console.print(printable(text), highlight=False)


def growth(exponent: float) -> str:
    """How a cost grows with the tokens T."""
    return {0.0: "1", 1.0: "T", 2.0: "T²"}.get(exponent, f"T^{exponent:g}")


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
