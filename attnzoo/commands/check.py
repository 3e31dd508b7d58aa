"""Hold backends to the conformance suite: definition, gradients, masks, causality, decoding, heads, numbers, layout.

attnzoo check linear sliding_window
attnzoo check --all --quick
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from attnzoo.commands import add_device, add_json, print_json
from attnzoo.errors import RequestError, unknown

DTYPES = ("float64", "float32", "bfloat16", "float16")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="registered backends")
    parser.add_argument("--all", action="store_true", help="every registered backend")
    parser.add_argument("--quick", action="store_true", help="the short form, seconds a backend")
    parser.add_argument(
        "--only", action="append", default=[], metavar="CHECK", help="this check alone; may be repeated"
    )
    parser.add_argument("--dtype", choices=DTYPES, help="one dtype instead of all the backend declares")
    add_device(parser)
    add_json(parser)


def run(arguments: Namespace) -> int:
    if bool(arguments.names) == arguments.all:
        raise RequestError("attnzoo check: name the backends, or --all of them")
    import torch

    from attnzoo import checks, registry
    from attnzoo.measure import resolve_device

    names = registry.list_backends() if arguments.all else arguments.names
    broken = {plugin.name for plugin in registry.broken_plugins()}
    faults = [
        unknown("backend", name, registry.list_backends())
        for name in names
        if name not in {*registry.list_backends(), *broken}
    ]
    if faults:
        raise RequestError(faults[0], faults[1:])
    device = resolve_device(arguments.device)
    dtype = getattr(torch, arguments.dtype) if arguments.dtype else None
    reports = []
    for name in names:
        reports.append(checks.check(name, device=device, dtype=dtype, quick=arguments.quick, only=arguments.only))
        if not arguments.json:
            print(reports[-1], flush=True)
    if arguments.json:
        print_json([report.to_dict() for report in reports])
    return int(any(report.failures or not (report.passed or report.refused) for report in reports))
