"""One part of scripts/gpu.sh: check, operators, window, train, decode or kernels, each within its seconds, its JSON in one file.

python scripts/gpu.py PART --seconds N --out FOLDER
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo import Mask, build, list_backends, registry
from attnzoo.checks import check
from attnzoo.files import read_json, write_json_atomic
from attnzoo.kernels.library import LIBRARIES
from attnzoo.kernels.optional import LIBRARIES as PACKAGES
from attnzoo.kernels.optional import missing
from attnzoo.measure.bench import bench
from attnzoo.measure.bench_row import machine
from attnzoo.measure.interval import Interval
from attnzoo.measure.latency import Contestant
from attnzoo.measure.peers.race import Bar, Entry, Race, run, verdict
from attnzoo.measure.roofline import machine_rates

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = DEVICE == "cpu" or os.environ.get("GPU_SMALL") == "1"
DTYPES = ("float32",) if SMALL else ("bfloat16", "float32")
SPEED = torch.float32 if SMALL else torch.bfloat16
FIRST = ["sdpa", "flex", "sliding_window", "linear", "gqa", "xformers"]  # what the time limit must not leave out
GROUP = 6  # models of 124 M parameters, with optimiser state, that fit beside one another


def names() -> list[str]:
    """All backends, the most telling first; on a CPU only a few."""
    known = list_backends()
    return ["sdpa", "flex", "sliding_window"] if SMALL else [*FIRST, *(n for n in known if n not in FIRST)]


def library_kernels() -> list[tuple[str, str]]:
    """Every backend with each kernel that a library computes for it; on a CPU one a library."""
    if SMALL:
        return [("sliding_window", "flex"), ("gla", "fla"), ("sliding_window", "flash_attn")]
    return [(name, kernel) for name in list_backends() for kernel in registry.get(name).kernels if kernel in LIBRARIES]


def label(name: str, kernel: str | None) -> str:
    return f"{name}, {kernel}" if kernel else name


def not_importable(kernel: str | None) -> list[str]:
    """Why the kernel's library is not there."""
    return [f"not importable: {reason}" for reason in missing(kernel, "cuda")] if kernel in PACKAGES else []


def check_part(seconds: float, out: Path) -> dict:
    """The quick check of every backend in each dtype, and of the library kernels in one; several processes at once."""
    end = time.monotonic() + seconds
    jobs = [(name, None, dtype) for dtype in DTYPES for name in names()]
    wanted = [(*job, DTYPES[0]) for job in library_kernels()]
    jobs += [job for job in wanted if not not_importable(job[1])]
    reports: list[dict] = []
    late = [not_checked(*job, "; ".join(why)) for job in wanted if (why := not_importable(job[1]))]
    with ProcessPoolExecutor(1 if SMALL else 8, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(one_check, *job, end): job for job in jobs}
        for done in as_completed(running):
            if done.exception() is not None:
                late.append(not_checked(*running[done], f"{type(done.exception()).__name__}: {done.exception()}"))
            else:
                reports.append(done.result())
    return {"checks": [*reports, *late], "machine": machine(DEVICE, SPEED, {})}


def one_check(name: str, kernel: str | None, dtype: str, end: float) -> dict:
    """A report as plain values; not run where the time is over."""
    if time.monotonic() > end:
        return not_checked(name, kernel, dtype, "the time limit was reached before its turn")
    own = {"kernel": kernel} if kernel else {}
    report = check(name, device=DEVICE, dtype=getattr(torch, dtype), quick=True, shrink=False, **own).to_dict()
    return report | {"subject": label(name, kernel)}


def not_checked(name: str, kernel: str | None, dtype: str, why: str) -> dict:
    return {
        "subject": label(name, kernel),
        "dtypes": [dtype],
        "passed": False,
        "refused": [f"not checked: {why}"],
        "tests": [],
    }


def verify(out: Path) -> Callable:
    """The verdicts of `check_part`, for `bench`."""
    checks = read_json(out / "check.json")["checks"] if (out / "check.json").exists() else []
    reports = {(report["subject"], *report["dtypes"]): report for report in checks}

    def verdict(name: str, device: str, dtype: torch.dtype, options: dict) -> tuple[str, list[str]]:
        kernel = options.get("kernel")
        if why := not_importable(kernel):
            return "refused", why
        report = reports.get((label(name, kernel), str(dtype).removeprefix("torch.")))
        if report is None:
            return "refused", ["not checked here"]
        failed = [test["name"] for test in report["tests"] if not test["passed"]]
        if failed:
            return "incorrect", [f"fails the quick check: {', '.join(failed)}"]
        return (
            ("ok", []) if report["passed"] else ("refused", report["refused"] or ["the quick check could try nothing"])
        )

    return verdict


def operators_part(seconds: float, out: Path) -> dict:
    """Forward and backward of every backend from 1k to 64k tokens."""
    lengths = (64, 128) if SMALL else (1024, 4096, 16384, 65536)
    heads = {"n_heads": 2, "head_dim": 16} if SMALL else {"n_heads": 8, "head_dim": 64}
    return bench(
        names(), ops=["forward+backward"], lengths=lengths, dtype=SPEED, device=DEVICE, dense_masks=False, rounds=9,
        seconds=1.0 if SMALL else 3.0, limit=seconds, verify=verify(out), **heads,
    )  # fmt: skip


def window_part(seconds: float, out: Path) -> dict:
    """A window of 1024 at 64k tokens against full attention: FlexAttention and ours; and what is around the kernel."""
    found = [run(race, seconds=seconds / 4, seed=0, device=DEVICE) for race in (window_race(), interface_race())]
    rows, lines = ([line for part in found for line in part[which]] for which in (0, 1))
    return {"rows": rows, "bars": lines, "growth": [], "machine": machine(DEVICE, SPEED, machine_rates(DEVICE, SPEED))}


def window_race() -> Race:
    n_tokens, window, heads, head_dim = (128, 16, 2, 16) if SMALL else (65536, 1024, 8, 64)
    backward = not (SMALL and DEVICE == "cpu")  # FlexAttention has none on a CPU
    tensors = inputs(1, heads, n_tokens, head_dim, backward)

    def entry(name: str, mask: Mask, **options: int) -> Entry:
        attn = build(name, n_heads=heads, head_dim=head_dim, **options)
        return operator(lambda q, k, v: attn(q, k, v, mask), tensors, backward, lambda: attn.kernel)

    entries = {
        "full": lambda: entry("sdpa", Mask()),
        "flex": lambda: entry("flex", Mask(window=window)),
        "sliding_window": lambda: entry("sliding_window", Mask(), window=window),
    }
    work = f"window {window} against full attention, T {n_tokens}, forward{' + backward' if backward else ''}"
    bars = [Bar(work, name, ("full",), 15.0) for name in ("flex", "sliding_window")]
    return Race(work, shape(1, heads, n_tokens, head_dim), (), entries, bars, rounds=9)


def interface_race() -> Race:
    """`sdpa` through the interface against torch's function by hand, where the kernel takes least."""
    batch, heads, n_tokens, head_dim = (1, 2, 64, 16) if SMALL else (8, 12, 1024, 64)
    tensors = inputs(batch, heads, n_tokens, head_dim, True)
    attn = build("sdpa", n_heads=heads, head_dim=head_dim)
    entries = {
        "sdpa": lambda: operator(attn, tensors, True, lambda: attn.kernel),
        "by hand": lambda: operator(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), tensors, True, lambda: None
        ),
    }
    work = f"what is around the kernel, B {batch}, T {n_tokens}, forward + backward"
    bars = [Bar(work, "sdpa", ("by hand",), 1 / 1.1)]
    return Race(work, shape(batch, heads, n_tokens, head_dim), (), entries, bars, rounds=50)


def inputs(batch: int, heads: int, n_tokens: int, head_dim: int, backward: bool) -> list[Tensor]:
    """q, k, v and the gradient of the output."""
    drawn = [torch.randn(batch, heads, n_tokens, head_dim, device=DEVICE, dtype=SPEED) for _ in range(4)]
    return [t.requires_grad_(backward and number < 3) for number, t in enumerate(drawn)]


def operator(call: Callable[..., Tensor], tensors: list[Tensor], backward: bool, kernel: Callable) -> Entry:
    q, k, v, gradient = tensors

    def once() -> None:
        result = call(q, k, v)
        if backward:
            torch.autograd.grad(result, (q, k, v), gradient)

    return Entry(Contestant(once), kernel)


def shape(batch: int, heads: int, n_tokens: int, head_dim: int) -> dict:
    dtype = str(SPEED).removeprefix("torch.")
    return {"T": n_tokens, "B": batch, "H": heads, "G": heads, "D": head_dim, "dtype": dtype}


def train_part(seconds: float, out: Path) -> dict:
    """A training step of 124 M parameters with each backend; compiled too for the first ones."""
    end = time.monotonic() + seconds
    size = (
        {"n_layers": 1, "n_heads": 2, "head_dim": 16, "batch_size": 1, "lengths": (32,)}
        if SMALL
        else {"n_layers": 12, "n_heads": 12, "head_dim": 64, "vocab_size": 50304, "batch_size": 8, "lengths": (1024,)}
    )
    found: dict = {"rows": [], "growth": []}
    order = names()
    first, rest = order[: GROUP - 1], order[GROUP - 1 :]
    for group in [first, *(["sdpa", *rest[at : at + GROUP]] for at in range(0, len(rest), GROUP))]:
        left = end - time.monotonic()
        if left <= 0:
            break
        more = bench(
            group, level="model", ops=["train_step"], dtype=SPEED, device=DEVICE, rounds=9, seconds=2.0,
            compiled=group is first and not SMALL, limit=left * (0.6 if group is first and rest else 1.0),
            verify=verify(out), **size,
        )  # fmt: skip
        found = {**more, "rows": found["rows"] + more["rows"], "growth": []}
        write_json_atomic(out / "train.json", found)
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
    for row in found["rows"]:
        if row["timing"]:
            row["tokens_per_s"] = 1000 * row["B"] * row["T"] / row["timing"]["median"]
            row["matmul_share"] = row["flops"] * 1000 / row["timing"]["median"] / found["machine"]["matmul_flops_per_s"]
    return {**found, "bars": share_line(found["rows"], found["machine"]["matmul_flops_per_s"])}


def share_line(rows: list[dict], flops_per_s: float) -> list[dict]:
    """A training step with sdpa, compiled where it was, against its operations at the rate of a large matrix product: the
    ratio is the share of that rate. A line as `attnzoo.measure.peers.race` makes them; none where nothing was timed."""
    timed = {row["backend"]: row for row in rows if row["timing"]}
    row = timed.get("sdpa, compiled") or timed.get("sdpa")
    if row is None:
        return []
    ideal, step = 1000 * row["flops"] / flops_per_s, Interval(*(row["timing"][k] for k in ("median", "low", "high")))
    share, bar = Interval(ideal / step.median, ideal / step.high, ideal / step.low), None if SMALL else 0.45
    return [{
        "work": f"train step, {row['backend']}, T {row['T']}: share of the matrix-product rate", "quantity": "time",
        "bar": bar, "ratio": vars(share), "at_most": None, "rounds": row["timing"]["rounds"], "limit": None,
        "ours": {"name": "step", **vars(step)}, "peer": {"name": "at that rate", **vars(Interval(ideal, ideal, ideal))},
        "verdict": verdict(share, bar), "reasons": [],
    }]  # fmt: skip


def decode_part(seconds: float, out: Path) -> dict:
    """Decoding at a short and a long context."""
    size = (
        {"n_layers": 1, "n_heads": 2, "head_dim": 16, "lengths": (32, 64), "decode_tokens": 2}
        if SMALL
        else {"n_layers": 12, "n_heads": 12, "head_dim": 64, "lengths": (1024, 32768), "decode_tokens": 16}
    )
    return bench(
        names(), level="model", ops=["decode"], dtype=SPEED, device=DEVICE, rounds=9, seconds=2.0, limit=seconds,
        verify=verify(out), **size,
    )  # fmt: skip


def kernels_part(seconds: float, out: Path) -> dict:
    """Forward and backward of the library kernels, beside sdpa."""
    lengths = (64,) if SMALL else (4096, 16384)
    heads = {"n_heads": 2, "head_dim": 16} if SMALL else {"n_heads": 8, "head_dim": 64}
    found: dict = {"rows": [], "growth": []}
    for kernel in LIBRARIES:
        named = [name for name, of in library_kernels() if of == kernel]
        more = bench(
            list(dict.fromkeys(["sdpa", *named])), ops=["forward+backward"], lengths=lengths, dtype=SPEED, device=DEVICE,
            options={name: {"kernel": kernel} for name in named}, dense_masks=False, rounds=9, seconds=2.0,
            limit=seconds / len(LIBRARIES), verify=verify(out), **heads,
        )  # fmt: skip
        for row in more["rows"]:
            row["backend"] = label(row["backend"], kernel if row["backend"] in named else None)
        found = {**more, "rows": found["rows"] + more["rows"], "growth": []}
    return found


PARTS = {
    "check": check_part,
    "operators": operators_part,
    "window": window_part,
    "train": train_part,
    "decode": decode_part,
    "kernels": kernels_part,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    start = time.monotonic()
    found = PARTS[arguments.part](arguments.seconds, arguments.out)
    write_json_atomic(arguments.out / f"{arguments.part}.json", found)
    print(f"{arguments.part}: {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
