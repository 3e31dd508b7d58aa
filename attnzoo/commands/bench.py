"""Time and peak memory of backends over sequence lengths; all of them take turns in every round.

attnzoo bench sdpa sliding_window linear --lengths 1024,2048,4096
attnzoo bench sdpa sliding_window sliding_window.window=128 --compile
attnzoo bench --level model --ops train_step,decode --json
attnzoo bench --out runs/bench              bench.json, bench.csv and bench.html
attnzoo bench sdpa gqa --n-kv-heads 1,4 --dtype float32,bfloat16      several shapes, a table each
attnzoo bench peers                         against what people would use instead: the extra 'peers'
attnzoo bench peers train decode            some of its races
"""

from __future__ import annotations

import itertools
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

from attnzoo import groups
from attnzoo.commands import add_device, add_json, flags, names_and_options, print_json
from attnzoo.errors import RequestError, unknown_backend
from attnzoo.files import check_writable, write_json_atomic, write_text_atomic
from attnzoo.from_files import from_file
from attnzoo.redact import redacted

PEERS = "peers"
DTYPES = ("float32", "bfloat16", "float16")
SHAPES = {
    "batch_size": ("1", "B"),
    "n_heads": ("4", "H"),
    "n_kv_heads": (None, "G (the backend's own)"),
    "head_dim": ("64", "D"),
    "dtype": ("float32", "of " + ", ".join(DTYPES)),
}
SIZES = {
    "rounds": (200, "most rounds of timing; they end before when the interval of each ratio is narrow"),
    "n_layers": (2, "L of the model"),
    "vocab_size": (256, "V of the model"),
    "decode_tokens": (16, "tokens decoded or generated in one call"),
}
ALONE = {*SHAPES, *SIZES, "level", "ops", "lengths", "limit", "compile", "fresh_memory"}  # not for peers


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME",
        help="registered backends (all) and their options as NAME.OPTION=VALUE; or 'peers', and some of its races (all)",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="peers at small sizes, to see that everything runs")
    parser.add_argument(
        "--keep-freed", action="store_true",
        help="peers with freed memory kept (glibc), as the backends are measured; by default the allocator is as people find it",
    )  # fmt: skip
    parser.add_argument(
        "--level", choices=("operator", "model"), default="operator", help="the attention alone, or a model"
    )
    parser.add_argument("--ops", type=flags.words, metavar="OP,…", help="of the level's works only these (all)")
    parser.add_argument(
        "--lengths",
        type=flags.wholes(1, flags.MOST_TOKENS),
        default="512,1024,2048",
        metavar="T,T,…",
        help="sequence lengths (512,1024,2048)",
    )
    for name, (shape, meaning) in SHAPES.items():
        shown = meaning if shape is None else f"{meaning} ({shape})"
        parser.add_argument(
            flag(name),
            type=_shape(name),
            default=shape,
            metavar="N,N,…",
            help=f"{shown}; every combination is measured",
        )
    for name, (size, meaning) in SIZES.items():
        parser.add_argument(
            flag(name), type=flags.whole(1, 10**6), default=size, metavar="N", help=f"{meaning} ({size})"
        )
    parser.add_argument(
        "--seconds",
        type=flags.seconds,
        default=10.0,
        help="time limit of the rounds of one length, or of one race (10)",
    )
    parser.add_argument(
        "--limit", type=flags.seconds, metavar="S",
        help="seconds for checks (half of it at most), timing and memory together; what is not reached says so, a call that "
        "has begun is finished",
    )  # fmt: skip
    parser.add_argument("--compile", action="store_true", help="each backend under torch.compile too")
    parser.add_argument("--fresh-memory", action="store_true", help="peak memory of each row in its own process; slow")
    parser.add_argument("--seed", type=flags.seed, default=0)
    parser.add_argument("--html", type=flags.place, metavar="FILE", help="also write the page there")
    parser.add_argument("--csv", type=flags.place, metavar="FILE", help="also write the rows there")
    parser.add_argument(
        "--out", type=flags.place, metavar="FOLDER", help="also write bench.json, bench.csv and bench.html there"
    )
    parser.add_argument(
        "--against",
        type=flags.place,
        metavar="OLD.json",
        help="name what became slower since, and how many rows it lacks; exit 1 if anything did",
    )
    add_device(parser)
    add_json(parser)


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def run(arguments: Namespace) -> int:
    old = _older(arguments.against) if arguments.against else None
    places = _places(arguments)
    found = _peers(arguments, old) if arguments.names[:1] == [PEERS] else _backends(arguments, old)
    from attnzoo.report import write_bench_report
    from attnzoo.report.bench_table import bench_csv, print_bench

    for path in places["json"]:
        write_json_atomic(path, redacted(found))
    for path in places["csv"]:
        write_text_atomic(path, bench_csv(found))
    for path in places["html"]:
        write_bench_report(found, path)
    if arguments.json:
        print_json(found)
    else:
        print_bench(found)
    worse = old is not None and _worse(found, old, arguments.against)
    return int(worse or any(row["status"] not in ("ok", "refused") for row in found["rows"]))


def _places(arguments: Namespace) -> dict[str, list[str]]:
    """kind -> the files that are to be written, once it is sure that they can be: a measurement is not lost at its end."""
    asked = {"json": None, "csv": arguments.csv, "html": arguments.html}
    in_folder = {kind: arguments.out and os.path.join(arguments.out, f"bench.{kind}") for kind in asked}
    places = {kind: [path for path in (asked[kind], in_folder[kind]) if path] for kind in asked}
    paths = [path for each in places.values() for path in each]
    if twice := sorted(
        {path for path in paths if [os.path.abspath(each) for each in paths].count(os.path.abspath(path)) > 1}
    ):
        raise RequestError("bench: two of --out, --html and --csv would write the same file", twice)
    for path in paths:
        check_writable(path)
    return places


def _older(path: str) -> dict[str, Any]:
    """What an earlier bench wrote."""
    from attnzoo.report.bench_file import read_bench

    old = read_bench(path)
    if old is None or old.get("rows") is None:
        raise RequestError(f"{path} holds no benchmark", ["--against takes the bench.json that --out wrote"])
    return old


def _worse(found: dict[str, Any], old: dict[str, Any], path: str) -> bool:
    """Whether anything became worse; what, and what cannot be told, goes to stderr."""
    from attnzoo.measure.trend import counterparts, regressions
    from attnzoo.report.bench_table import alone_lines, regression_lines

    worse = regressions(found, old)
    for line in regression_lines(worse):
        print(line, file=sys.stderr)
    for line in alone_lines(found, counterparts(found, old), path):
        print(line, file=sys.stderr)
    return bool(worse)


def _backends(arguments: Namespace, old: dict[str, Any] | None) -> dict[str, Any]:
    names, options, lengths, shapes = _checked(arguments)
    import torch

    from attnzoo import registry
    from attnzoo.measure import resolve_device
    from attnzoo.measure.bench import bench_shapes, planned
    from attnzoo.measure.trend import counterparts

    names = names or registry.list_backends()
    shapes = [shape | {"dtype": getattr(torch, shape["dtype"])} for shape in shapes]
    work = {
        "level": arguments.level,
        "ops": arguments.ops.split(",") if arguments.ops else [],
        "lengths": lengths,
        "compiled": arguments.compile,
    }
    if old is not None:
        counterparts(planned(names, shapes, **work), old)  # raises where there are none
    return bench_shapes(
        names,
        shapes,
        device=resolve_device(arguments.device),
        seconds=arguments.seconds,
        limit=arguments.limit,
        seed=arguments.seed,
        options=options,
        fresh_memory=arguments.fresh_memory,
        **work,
        **{name: getattr(arguments, name) for name in SIZES},
    )


def _peers(arguments: Namespace, old: dict[str, Any] | None) -> dict[str, Any]:
    default = ArgumentParser()
    add_arguments(default)
    given = vars(arguments)
    foreign = [name for name, value in vars(default.parse_args([])).items() if name in ALONE and given[name] != value]
    faults = [f"{flag(name)} does not apply to peers, whose sizes are fixed" for name in foreign]
    faults += (
        [f"--device {arguments.device}: the races run on the CPU"] if arguments.device not in ("auto", "cpu") else []
    )
    if faults:
        raise RequestError("attnzoo bench peers cannot do this", faults)
    from attnzoo.measure.peers import bench_peers, check_races

    check_races(arguments.names[1:], old)
    return bench_peers(
        arguments.names[1:], quick=arguments.quick, seconds=arguments.seconds, seed=arguments.seed,
        keep_freed=arguments.keep_freed,
    )  # fmt: skip


def _checked(
    arguments: Namespace,
) -> tuple[list[str], dict[str, dict[str, Any]], list[int], list[dict[str, Any]]]:
    """The named backends, their options, the lengths and the shapes; every fault of the request in one error."""
    names, options, faults = names_and_options(arguments.names)
    names = [from_file("attention", name) for name in names]
    known = groups.backend_names()
    faults += [unknown_backend(name, known) for name in names if name not in known]
    lengths = _numbers(arguments.lengths)
    shapes = _shapes(arguments, faults)
    if arguments.quick:
        faults.append("--quick belongs to `attnzoo bench peers`: here --lengths and the sizes say how small")
    if arguments.keep_freed:
        faults.append("--keep-freed belongs to `attnzoo bench peers`: the backends are always measured so")
    if faults:
        raise RequestError("attnzoo bench cannot do this", faults)
    return names, options, lengths, shapes


def _shapes(arguments: Namespace, faults: list[str]) -> list[dict[str, Any]]:
    """Every combination of what was given for each of `SHAPES`."""
    given: dict[str, list[Any]] = {"dtype": list(dict.fromkeys(arguments.dtype.split(",")))}
    for name in SHAPES:
        if name not in given:
            words = getattr(arguments, name)
            given[name] = [None] if words is None else _numbers(words)
    pairs = [(h, g) for h in given["n_heads"] for g in given["n_kv_heads"] if g is not None]
    faults += [f"--n-kv-heads {g} does not divide --n-heads {h}" for h, g in pairs if h % g]
    return [dict(zip(given, values, strict=True)) for values in itertools.product(*given.values())]


def _numbers(text: str) -> list[int]:
    """'1,2' as [1, 2], each once."""
    return list(dict.fromkeys(int(word) for word in text.split(",")))


def _shape(name: str) -> Callable[[str], str]:
    """What the option of one of `SHAPES` takes."""
    return flags.choices(DTYPES) if name == "dtype" else flags.wholes(1, 2**16)
