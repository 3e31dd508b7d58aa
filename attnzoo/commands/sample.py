"""Generate text with a trained model.

attnzoo sample runs/sdpa-seed0 --prompt "Call me " --tokens 200 --temperature 0.8 --seed 1
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from attnzoo.commands import add_device, check_saved
from attnzoo.errors import RequestError


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN|DIR", help="a run folder, or an exported model")
    parser.add_argument("--prompt", default="\n", help="what the text starts with")
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="new tokens")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token each time")
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="draw from the likeliest tokens that hold P of the probability"
    )
    parser.add_argument("--seed", type=int, default=0)
    add_device(parser)


def run(arguments: Namespace) -> int:
    bounds = [
        ("tokens", arguments.tokens, arguments.tokens >= 1, "at least 1"),
        ("temperature", arguments.temperature, 0 <= arguments.temperature < float("inf"), "at least 0"),
        ("top-k", arguments.top_k, arguments.top_k is None or arguments.top_k >= 1, "at least 1"),
        ("top-p", arguments.top_p, arguments.top_p is None or 0 < arguments.top_p <= 1, "more than 0 and at most 1"),
        ("prompt", repr(arguments.prompt), bool(arguments.prompt), "at least one character"),
    ]
    faults = [f"--{name} {value}: must be {phrase}" for name, value, holds, phrase in bounds if not holds]
    if faults:
        raise RequestError("attnzoo sample cannot do this", faults)
    check_saved(arguments.run)
    import torch

    from attnzoo.measure import resolve_device
    from attnzoo.training.saved import load_saved

    device = resolve_device(arguments.device)
    saved = load_saved(arguments.run)
    if saved.tokenizer is None:
        why = "was exported without a tokenizer" if saved.task is None else f"was trained on {saved.task.name}, no text"
        raise RequestError(f"{arguments.run} {why}: it cannot be sampled as text")
    start = torch.tensor([saved.tokenizer.encode(arguments.prompt)], device=device)
    tokens = saved.model.to(device).generate(
        start,
        arguments.tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        seed=arguments.seed,
    )
    sys.stdout.write(saved.tokenizer.decode(tokens[0].tolist()) + "\n")
    return 0
