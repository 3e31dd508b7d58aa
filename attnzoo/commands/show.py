"""Draw what an attention reads: a backend's pattern and weights, or the heads of a trained model.

attnzoo show sliding_window
attnzoo show block_sparse layout=strided stride=2 --tokens 48 --out strided.svg     (or .png)
attnzoo show runs/sdpa-seed0 --out heads.html
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from attnzoo import groups
from attnzoo.commands import add_allow_code, add_json, check_saved, flags, plain_value, print_json
from attnzoo.components import installed
from attnzoo.errors import RequestError, unknown_backend
from attnzoo.files import check_writable, write_bytes_atomic, write_text_atomic
from attnzoo.report.png import MISSING

MOST_TOKENS, HEADS = 1024, 4
PIPE_WIDTH = 80


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME|RUN|DIR", help="a registered backend, a run folder, or an exported model")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="the backend's own options")
    parser.add_argument(
        "--tokens",
        type=flags.whole(2, MOST_TOKENS),
        metavar="T",
        help="length of the row (32; of a run: its own, at most 128)",
    )
    parser.add_argument(
        "--head", type=flags.whole(0, HEADS - 1), default=0, metavar="H", help="which of a backend's 4 heads (0)"
    )
    parser.add_argument("--seed", type=flags.seed, default=0)
    parser.add_argument(
        "--out",
        type=flags.place,
        metavar="FILE",
        help="also draw into this file: .svg or .png for a backend, .html for a run",
    )
    add_json(parser)
    add_allow_code(parser)


def run(arguments: Namespace) -> int:
    is_run = arguments.name not in groups.backend_names()
    options = _checked(arguments, is_run)
    shown = _run_shown(arguments) if is_run else _backend_shown(arguments, options)
    if arguments.json:
        print_json(shown)
    elif arguments.out:
        print(f"picture: {arguments.out}")
    return 0


def _backend_shown(arguments: Namespace, options: dict[str, Any]) -> dict[str, Any]:
    from rich.console import Console

    from attnzoo.measure.maps import backend_map
    from attnzoo.report.png import png
    from attnzoo.report.show import picture_svg, print_picture

    shown = backend_map(
        arguments.name, n_tokens=arguments.tokens or 32, head=arguments.head, seed=arguments.seed, options=options
    )
    if arguments.out:
        svg = picture_svg(shown)
        drawn = png(svg) if Path(arguments.out).suffix.lower() == ".png" else svg.encode()
        write_bytes_atomic(arguments.out, drawn)
    if not arguments.json:
        console = Console()
        print_picture(shown, console.width if console.is_terminal else PIPE_WIDTH)
    return shown


def _run_shown(arguments: Namespace) -> dict[str, Any]:
    check_saved(arguments.name)
    from attnzoo.measure.maps import model_maps
    from attnzoo.report.show import heads_html, print_heads
    from attnzoo.training.saved import load_saved

    saved = load_saved(arguments.name, allow_code=arguments.allow_code)
    row = saved.row(arguments.tokens or min(saved.n_tokens, 128))
    shown: dict[str, Any] = {
        "title": f"{saved.name}: what its heads read",
        "run": str(arguments.name),
        "n_tokens": row.shape[1],
        "text": None if saved.tokenizer is None else saved.tokenizer.decode(row[0].tolist()),
        "layers": model_maps(saved.model, row),
    }
    if arguments.out:
        write_text_atomic(arguments.out, heads_html(shown))
    if not arguments.json:
        print_heads(shown["layers"])
    return shown


def _checked(arguments: Namespace, is_run: bool) -> dict[str, Any]:
    """The options; every fault of the request in one error."""
    faults: list[str] = []
    if is_run and not Path(arguments.name).exists():
        faults.append(f"{unknown_backend(arguments.name, groups.backend_names())}; and there is no such folder")
    options: dict[str, Any] = {}
    for word in arguments.settings:
        key, equals, value = word.removeprefix("attention.").removeprefix(f"{arguments.name}.").partition("=")
        if equals and key:
            options[key] = plain_value(key, value, faults)
        else:
            faults.append(f"{word!r} is not KEY=VALUE")
    if is_run and arguments.settings:
        faults.append("a run has its options already: only a backend takes KEY=VALUE")
    suffix, right = Path(arguments.out or "").suffix.lower(), (".html",) if is_run else (".svg", ".png")
    if arguments.out and suffix not in right:
        faults.append(f"--out {arguments.out}: {'a run' if is_run else 'a backend'} is drawn as {' or '.join(right)}")
    elif suffix == ".png" and not installed("resvg_py"):
        faults.append(f"--out {arguments.out}: {MISSING}")
    if not is_run and not faults:
        from attnzoo import registry

        faults += registry.option_faults(arguments.name, options)
    if faults:
        raise RequestError("attnzoo show cannot do this", faults)
    if arguments.out:
        check_writable(arguments.out)
    return options
