"""Test a trained model for leaks: no logit may depend on a later token.

attnzoo leak runs/linear-seed0
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from attnzoo.commands import add_device, add_json, print_json
from attnzoo.training.config import load_config


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("--tokens", type=int, metavar="T", help="length of the test sequences (the run's own)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--canary", action="store_true", help="also train a fresh model on random tokens: its loss may not beat chance"
    )
    add_device(parser)
    add_json(parser)


def run(arguments: Namespace) -> int:
    load_config(arguments.run)  # a wrong folder is said at once, before torch is imported
    from attnzoo import checks
    from attnzoo.measure import resolve_device
    from attnzoo.training import load_run

    device = resolve_device(arguments.device)
    cfg, model, task = load_run(arguments.run)
    report = checks.leak_test(
        model.to(device),
        vocab_size=task.vocab_size,
        n_tokens=cfg.task.n_tokens if arguments.tokens is None else arguments.tokens,
        seed=arguments.seed,
        device=device,
        model=model,
    )
    if arguments.canary:
        from attnzoo.checks.canary import entropy_canary
        from attnzoo.model import build_model

        canary = entropy_canary(
            lambda: build_model(cfg, task.vocab_size), task.vocab_size, seed=arguments.seed, device=device
        )
        report.tests.append(canary)
    if arguments.json:
        print_json(report.to_dict())
    else:
        print(report)
    return int(not report.passed)
