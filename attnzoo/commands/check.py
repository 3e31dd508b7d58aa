"""Hold components to what their kind must keep; backends to the conformance suite (definition, gradients, masks, decoding …).

attnzoo check linear sliding_window
attnzoo check --all --quick
attnzoo check gla gla.kernel=fla sliding_window sliding_window.window=8     (with other options than the defaults)
attnzoo check recall recall.n_symbols=8                     (a task; task:recall where another kind has the name too)
attnzoo check mine.py:MyAttention mine.py:MyTask            (a component, or a language model, from a file or package)
attnzoo check --model attention=linear model.n_layers=2     (the whole language model, its task and generation)
attnzoo check --model runs/sdpa-seed0                       (a trained one: a run folder or an exported model)
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from attnzoo.commands import add_device, add_json, check_saved, names_and_options, print_json
from attnzoo.components import KINDS
from attnzoo.errors import RequestError
from attnzoo.terminal import printable

if TYPE_CHECKING:
    from attnzoo.checks import CheckReport

DTYPES = ("float64", "float32", "bfloat16", "float16")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="NAME, KIND:NAME or FILE.py:NAME, options as NAME.OPTION=VALUE; with --model KEY=VALUE or a folder",
    )
    parser.add_argument("--all", action="store_true", help="every registered backend")
    parser.add_argument(
        "--model", action="store_true", help="the model that these settings describe, untrained, or a saved one"
    )
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
    named, options, wrong = names_and_options(arguments.names)
    if bool(named) == arguments.all:
        raise RequestError("attnzoo check: name what to check, or --all backends", wrong)
    import torch

    from attnzoo import components, registry
    from attnzoo.checks import elsewhere, kinds
    from attnzoo.measure import resolve_device

    names = registry.list_backends() if arguments.all else [_resolved(name, kinds.resolve, wrong) for name in named]
    options = {_resolved(name, kinds.resolve, wrong): given for name, given in options.items()}
    faults = wrong + [f"options of {name}, which is not checked" for name in options if name not in names]
    broken = {plugin.name for plugin in components.broken_plugins()}
    faults = faults or [
        f"{name}: {fault}" for name in options if ":" not in name and name not in broken
        for fault in registry.option_faults(name, options[name])
    ]  # fmt: skip
    if faults:
        raise RequestError(faults[0], faults[1:])
    subjects = [elsewhere.load(name) if _is_elsewhere(name) else name for name in names]
    device = resolve_device(arguments.device)
    dtype = getattr(torch, arguments.dtype) if arguments.dtype else None
    given = [options.get(name, {}) for name in names]
    one = partial(_check, device=device, dtype=dtype, quick=arguments.quick, only=arguments.only)
    # what a file defines does not travel to a process
    apart = device == "cpu" and not any(map(_is_elsewhere, names))
    reports = []
    for report in _side_by_side(one, names, given) if apart else map(one, subjects, given):
        reports.append(report)
        if not arguments.json:
            print(printable(report), flush=True)
    if arguments.json:
        print_json([report.to_dict() for report in reports])
    return int(any(report.failures or not (report.passed or report.refused) for report in reports))


def _check(subject: Any, options: dict[str, Any], **how: Any) -> CheckReport:
    """One subject with its own options."""
    from attnzoo import checks

    return checks.check(subject, **how, **options)


def _is_elsewhere(name: str) -> bool:
    """Whether it is of a file or a package, rather than a component of a kind."""
    kind, colon, _ = name.rpartition(":")
    return bool(colon) and kind not in KINDS


def _resolved(name: str, resolve: Callable[[str], tuple[str, str]], faults: list[str]) -> str:
    """The name as `checks.check` takes it: a backend's alone, of another kind with the kind before it."""
    place = name.rpartition(":")[0]
    if _is_elsewhere(name) and ("." in place or find_spec(place)):
        return name
    try:
        kind, found = resolve(name)
    except RequestError as error:
        faults += [error.message, *error.reasons]
        return name
    return found if kind == "attention" else f"{kind}:{found}"


def _side_by_side(
    one: Callable[..., CheckReport], names: list[str], given: list[dict[str, Any]]
) -> Iterator[CheckReport]:
    """Reports in the order of the names, from a process a core: on inputs this small torch has no use for a second thread."""
    import torch

    workers = min(torch.get_num_threads(), len(names))
    if workers < 2:
        yield from map(one, names, given)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        yield from pool.map(one, names, given)


def run_model(arguments: Namespace) -> int:
    """`attnzoo check --model KEY=VALUE …`: labels, ties, loss, padding, documents, generation, leaks, the entropy canary."""
    if arguments.all or arguments.only or arguments.dtype:
        raise RequestError(
            "attnzoo check --model takes settings (KEY=VALUE) or one folder, --quick, --device and --json"
        )
    saved = len(arguments.names) == 1 and "=" not in arguments.names[0]
    how = _of_folder(arguments.names[0]) if saved else _of_settings(arguments.names)
    from attnzoo.checks.model import check_model
    from attnzoo.measure.environment import resolve_device

    device = resolve_device(arguments.device)
    model = how.pop("model").to(device)
    report = check_model(model, device=device, quick=arguments.quick, **how)
    if arguments.json:
        print_json(report.to_dict())
    else:
        print(printable(report))
    return int(bool(report.failures))


def _of_settings(overrides: list[str]) -> dict[str, Any]:
    """What `check_model` is called with: an untrained model and its task."""
    from attnzoo.config import compose

    cfg = compose("train", overrides)
    from attnzoo.model import build_model
    from attnzoo.tasks import build_task

    task = build_task(cfg.task, cfg.data, cfg.seed)
    return {
        "model": build_model(cfg, task.vocab_size), "task": task, "n_tokens": cfg.task.n_tokens, "seed": cfg.seed
    }  # fmt: skip


def _of_folder(folder: str) -> dict[str, Any]:
    """The same of a trained model; without a task where it was exported or its text is gone, which is said."""
    check_saved(folder)
    from attnzoo.training.saved import load_saved

    saved = load_saved(folder)
    task = None
    try:
        task = saved.load_task()
    except RequestError as error:
        print(f"the task is not checked: {error}", file=sys.stderr)
    return {"model": saved.model, "task": task, "n_tokens": saved.n_tokens, "make_model": saved.fresh}
