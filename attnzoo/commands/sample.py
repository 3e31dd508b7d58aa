"""Generate text with a trained model.

attnzoo sample runs/sdpa-seed0 --prompt "Call me " --tokens 200 --temperature 0.8 --seed 1
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from attnzoo.commands import add_allow_code, add_device, check_saved, flags
from attnzoo.errors import RequestError
from attnzoo.terminal import printable


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=flags.place, metavar="RUN|DIR", help="a run folder, or an exported model")
    parser.add_argument("--prompt", default="\n", help="what the text starts with")
    parser.add_argument("--tokens", type=flags.tokens, default=200, metavar="N", help="new tokens")
    parser.add_argument(
        "--temperature",
        type=flags.real(lambda t: t >= 0, "0 or more"),
        default=0.8,
        help="0 takes the likeliest token each time",
    )
    parser.add_argument("--top-k", type=flags.whole(), metavar="K", help="draw from the K likeliest tokens")
    parser.add_argument(
        "--top-p",
        type=flags.real(lambda p: 0 < p <= 1, "more than 0 and at most 1"),
        metavar="P",
        help="draw from the likeliest tokens that hold P of the probability",
    )
    parser.add_argument("--seed", type=flags.seed, default=0)
    add_device(parser)
    add_allow_code(parser)


def run(arguments: Namespace) -> int:
    if not arguments.prompt:
        raise RequestError("sample: --prompt '': must be at least one character")
    check_saved(arguments.run)
    import torch

    from attnzoo.measure import resolve_device
    from attnzoo.training.saved import load_saved

    device = resolve_device(arguments.device)
    saved = load_saved(arguments.run, allow_code=arguments.allow_code)
    if saved.tokenizer is None:
        raise RequestError(f"{arguments.run} cannot be sampled as text: it {saved.no_text}")
    start = torch.tensor([saved.tokenizer.encode(arguments.prompt)], device=device)
    tokens = saved.model.to(device).generate(
        start,
        arguments.tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        seed=arguments.seed,
    )
    sys.stdout.write(printable(saved.tokenizer.decode(tokens[0].tolist())) + "\n")
    return 0
