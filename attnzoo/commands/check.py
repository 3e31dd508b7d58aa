"""Hold backends to the conformance suite: definition, gradients, masks, causality, decoding, heads, numbers, layout.

attnzoo check linear sliding_window
attnzoo check --all --quick
attnzoo check mine.py:MyAttention                           (an attention, or a language model, from a file or package)
attnzoo check --model attention=linear model.n_layers=2     (the whole language model, its task and generation)
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

from attnzoo.commands import add_device, add_json, print_json
from attnzoo.errors import RequestError, unknown

if TYPE_CHECKING:
    from attnzoo.checks import CheckReport

DTYPES = ("float64", "float32", "bfloat16", "float16")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="registered backends, or FILE.py:NAME; with --model KEY=VALUE"
    )
    parser.add_argument("--all", action="store_true", help="every registered backend")
    parser.add_argument("--model", action="store_true", help="the model that these settings describe, untrained")
    parser.add_argument("--quick", action="store_true", help="the short form, seconds a backend")
    parser.add_argument(
        "--only", action="append", default=[], metavar="CHECK", help="this check alone; may be repeated"
    )
    parser.add_argument("--dtype", choices=DTYPES, help="one dtype instead of all the backend declares")
    add_device(parser)
    add_json(parser)


def run(arguments: Namespace) -> int:
    if arguments.model:
        return run_model(arguments)
    if bool(arguments.names) == arguments.all:
        raise RequestError("attnzoo check: name the backends, or --all of them")
    import torch

    from attnzoo import checks, registry
    from attnzoo.checks import elsewhere
    from attnzoo.measure import resolve_device

    names = registry.list_backends() if arguments.all else arguments.names
    broken = {plugin.name for plugin in registry.broken_plugins()}
    faults = [
        unknown("backend", name, registry.list_backends())
        for name in names
        if ":" not in name and name not in {*registry.list_backends(), *broken}
    ]
    if faults:
        raise RequestError(faults[0], faults[1:])
    subjects = [elsewhere.load(name) if ":" in name else name for name in names]
    device = resolve_device(arguments.device)
    dtype = getattr(torch, arguments.dtype) if arguments.dtype else None
    one = partial(checks.check, device=device, dtype=dtype, quick=arguments.quick, only=arguments.only)
    reports = []
    apart = device == "cpu" and not any(
        ":" in name for name in names
    )  # what a file defines does not travel to a process
    for report in _side_by_side(one, names) if apart else map(one, subjects):
        reports.append(report)
        if not arguments.json:
            print(report, flush=True)
    if arguments.json:
        print_json([report.to_dict() for report in reports])
    return int(any(report.failures or not (report.passed or report.refused) for report in reports))


def _side_by_side(one: Callable[[str], CheckReport], names: list[str]) -> Iterator[CheckReport]:
    """Reports in the order of the names, from a process a core: on inputs this small torch has no use for a second thread."""
    import torch

    workers = min(torch.get_num_threads(), len(names))
    if workers < 2:
        yield from map(one, names)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        yield from pool.map(one, names)


def run_model(arguments: Namespace) -> int:
    """`attnzoo check --model KEY=VALUE …`: labels, ties, loss, padding, documents, generation, leaks, the entropy canary."""
    if arguments.all or arguments.only or arguments.dtype:
        raise RequestError("attnzoo check --model takes settings (KEY=VALUE), --quick, --device and --json")
    from attnzoo.config import compose

    cfg = compose("train", arguments.names)
    from attnzoo.checks.model import check_model
    from attnzoo.measure.environment import resolve_device
    from attnzoo.model import build_model
    from attnzoo.tasks import build_task

    device = resolve_device(arguments.device)
    task = build_task(cfg.task, cfg.data, cfg.seed)
    model = build_model(cfg, task.vocab_size).to(device)
    report = check_model(
        model, task=task, n_tokens=cfg.task.n_tokens, seed=cfg.seed, device=device, quick=arguments.quick
    )
    if arguments.json:
        print_json(report.to_dict())
    else:
        print(report)
    return int(bool(report.failures))
