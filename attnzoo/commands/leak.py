"""Test a trained model for leaks: no logit may depend on a later token.

attnzoo leak runs/linear-seed0
attnzoo leak mine.py:make_model --tokens 128        (any language model: a module, or a function that makes one)
"""

from __future__ import annotations

import copy
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

from attnzoo.commands import add_allow_code, add_device, add_json, check_saved, flags, print_json
from attnzoo.errors import RequestError
from attnzoo.terminal import printable


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "run", type=flags.place, metavar="RUN|DIR", help="a run folder, an exported model, or FILE.py:NAME"
    )
    parser.add_argument(
        "--tokens",
        type=flags.whole(2, flags.MOST_TOKENS),
        metavar="T",
        help="length of the test sequences (the run's own; else 64)",
    )
    parser.add_argument("--seed", type=flags.seed, default=0)
    parser.add_argument(
        "--canary", action="store_true", help="also train a fresh model on random tokens: its loss may not beat chance"
    )
    add_device(parser)
    add_json(parser)
    add_allow_code(parser)


def run(arguments: Namespace) -> int:
    elsewhere = ":" in arguments.run
    if not elsewhere:
        check_saved(arguments.run)
    from attnzoo import checks
    from attnzoo.checks.canary import entropy_canary
    from attnzoo.measure import resolve_device

    device = resolve_device(arguments.device)
    found = _from_code(arguments.run) if elsewhere else _from_disk(arguments.run, arguments.allow_code)
    model, vocab_size, n_tokens, fresh = found
    report = checks.leak_test(
        model.to(device),
        vocab_size=vocab_size,
        n_tokens=n_tokens if arguments.tokens is None else arguments.tokens,
        seed=arguments.seed,
        device=device,
        model=model,
    )
    if arguments.canary:
        report.tests.append(entropy_canary(fresh, vocab_size, seed=arguments.seed, device=device))
    if arguments.json:
        print_json(report.to_dict())
    else:
        print(printable(report))
    return int(bool(report.failed) or not report.passed)


def _from_disk(folder: str, allow_code: bool) -> tuple[Any, int, int, Callable[[], Any]]:
    """The trained model, V, T, and a maker of untrained ones."""
    from attnzoo.training.saved import load_saved

    saved = load_saved(folder, allow_code=allow_code)
    return saved.model, saved.model.vocab_size, saved.n_tokens, saved.fresh


def _from_code(spec: str) -> tuple[Any, int, int, Callable[[], Any]]:
    """The same of a model from elsewhere; a copy of it stands for an untrained one."""
    from attnzoo.checks.elsewhere import load, vocabulary
    from attnzoo.contract import Attention

    model: Any = load(spec)
    if isinstance(model, (type, Attention)):
        raise RequestError(f"{spec} is an attention: attnzoo check takes it, attnzoo leak takes a language model")
    return model, vocabulary(model, spec), 64, lambda: copy.deepcopy(model)
