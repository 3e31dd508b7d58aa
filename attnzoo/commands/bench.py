"""Time and peak memory of backends over sequence lengths; all of them take turns in every round.

attnzoo bench sdpa sliding_window linear --lengths 1024,2048,4096
attnzoo bench --level model --json
attnzoo bench --out runs/bench              bench.json, bench.csv and bench.html
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from attnzoo import groups
from attnzoo.commands import add_device, add_json, print_json
from attnzoo.errors import RequestError, unknown
from attnzoo.files import read_json, write_json_atomic, write_text_atomic

DTYPES = ("float32", "bfloat16", "float16")
SIZES = {"batch_size": (1, "B"), "n_heads": (4, "H"), "head_dim": (64, "D"), "rounds": (15, "most rounds of timing")}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="registered backends (all)")
    parser.add_argument(
        "--level", choices=("operator", "model"), default="operator", help="the attention alone, or a model"
    )
    parser.add_argument("--lengths", default="512,1024,2048", metavar="T,T,…", help="sequence lengths (512,1024,2048)")
    for name, (default, meaning) in SIZES.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=default, metavar="N", help=f"{meaning} ({default})")
    parser.add_argument("--n-kv-heads", type=int, metavar="N", help="G (the backend's own)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of the rounds of one length (20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="FOLDER", help="also write bench.json, bench.csv and bench.html there")
    parser.add_argument("--against", metavar="OLD.json", help="name what became slower since, exit 1 if anything did")
    add_device(parser)
    add_json(parser)


def run(arguments: Namespace) -> int:
    names, lengths = _checked(arguments)
    old = read_json(arguments.against) if arguments.against else None
    import torch

    from attnzoo import registry
    from attnzoo.measure import resolve_device
    from attnzoo.measure.bench import bench
    from attnzoo.measure.trend import regressions
    from attnzoo.report import write_bench_report
    from attnzoo.report.bench_table import bench_csv, print_bench, regression_lines

    device = resolve_device(arguments.device)
    found = bench(
        names or registry.list_backends(),
        level=arguments.level,
        lengths=lengths,
        device=device,
        dtype=getattr(torch, arguments.dtype),
        n_kv_heads=arguments.n_kv_heads,
        seconds=arguments.seconds,
        seed=arguments.seed,
        **{name: getattr(arguments, name) for name in SIZES},
    )
    if arguments.out:
        out = Path(arguments.out)
        write_json_atomic(out / "bench.json", found)
        write_text_atomic(out / "bench.csv", bench_csv(found))
        write_bench_report(found, out / "bench.html")
    if arguments.json:
        print_json(found)
    else:
        print_bench(found)
    worse = regressions(found, old) if old else []
    for line in regression_lines(worse):
        print(line, file=sys.stderr)
    return int(bool(worse) or any(row["status"] not in ("ok", "refused") for row in found["rows"]))


def _checked(arguments: Namespace) -> tuple[list[str], list[int]]:
    """The named backends and the lengths; every fault of the request in one error."""
    known = groups.backend_names()
    faults = [unknown("backend", name, known) for name in arguments.names if name not in known]
    words = arguments.lengths.split(",")
    faults += [f"--lengths: {word!r} is no length" for word in words if not (word.isdigit() and int(word))]
    for name in SIZES:
        if getattr(arguments, name) < 1:
            faults.append(f"--{name.replace('_', '-')} {getattr(arguments, name)}: must be at least 1")
    heads, kv_heads = arguments.n_heads, arguments.n_kv_heads
    if kv_heads is not None and heads >= 1 and (kv_heads < 1 or heads % kv_heads):
        faults.append(f"--n-kv-heads {kv_heads} does not divide --n-heads {heads}")
    if not 0 < arguments.seconds < float("inf"):
        faults.append(f"--seconds {arguments.seconds}: must be more than 0")
    if faults:
        raise RequestError("attnzoo bench cannot do this", faults)
    return arguments.names, [int(word) for word in words]
