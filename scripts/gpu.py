"""One part of scripts/gpu.sh, within its seconds: check, operators, growth, window, train, decode or kernels. Its JSON is
written after every job; a later call goes on with the jobs that are not there yet. `page` shows all of them.

python scripts/gpu.py PART --seconds N --out FOLDER [--only NAME,NAME]
python scripts/gpu.py page --out FOLDER
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also in the workers, which begin with this file

from gpu_jobs import Job, Part, identity, run_jobs
from gpu_page import page, read_part

from attnzoo import Mask, build, list_backends, registry
from attnzoo.checks import check
from attnzoo.kernels.library import LIBRARIES
from attnzoo.kernels.optional import LIBRARIES as PACKAGES
from attnzoo.kernels.optional import missing
from attnzoo.measure.bench import bench
from attnzoo.measure.bench_row import machine
from attnzoo.measure.environment import device_name, git
from attnzoo.measure.interval import Interval
from attnzoo.measure.latency import Contestant
from attnzoo.measure.peers.race import Bar, Entry, Race, forbidden, run, verdict

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = DEVICE == "cpu" or os.environ.get("GPU_SMALL") == "1"
DTYPES = ("float32",) if SMALL else ("bfloat16", "float32")
SPEED = torch.float32 if SMALL else torch.bfloat16
FIRST = ["sdpa", "sliding_window", "flex", "linear", "gqa", "xformers"]  # what the time limit must not leave out
LONGEST = 600.0 if SMALL else 60.0  # seconds of a job
TOGETHER = 3  # models of 124 M parameters, with optimiser state, that are timed beside sdpa's
HEADS = {"n_heads": 2, "head_dim": 16} if SMALL else {"n_heads": 8, "head_dim": 64}
BY_HAND = "torch by hand"
MODEL = {"n_layers": 1, "n_heads": 2, "head_dim": 16} if SMALL else {"n_layers": 12, "n_heads": 12, "head_dim": 64}


def names() -> list[str]:
    """All backends, the most telling first; on a CPU only a few."""
    known = list_backends()
    return FIRST[:3] if SMALL else [*FIRST, *(n for n in known if n not in FIRST)]


def library_kernels() -> list[tuple[str, str]]:
    """Every backend with each kernel that a library computes for it; on a CPU one a library."""
    if SMALL:
        return [("sliding_window", "flex"), ("gla", "fla"), ("sliding_window", "flash_attn")]
    return [(name, kernel) for kernel in LIBRARIES for name in list_backends() if kernel in registry.get(name).kernels]


def here() -> dict[str, Any]:
    """What tells records of this device and code from others, by the names of `attnzoo.measure.bench_row.machine`."""
    return {"device_name": device_name(DEVICE), "torch": torch.__version__, **git()}


def label(name: str, kernel: str | None = None) -> str:
    return f"{name}, {kernel}" if kernel else name


def not_importable(kernel: str | None) -> list[str]:
    """Why the kernel's library is not there."""
    return [f"not importable: {reason}" for reason in missing(kernel, "cuda")] if kernel in PACKAGES else []


# ---- checks


def check_jobs(out: Path) -> list[Job]:
    """The quick check of every backend and library kernel in the dtype that is timed, then in the others."""
    subjects = [(name, None) for name in names()] + library_kernels()
    return [
        Job(
            f"{label(*subject)}, {dtype}",
            one_check,
            (*subject, dtype),
            LONGEST,
            {"checks": [unchecked(*subject, dtype)]},
        )
        for dtype in DTYPES
        for subject in subjects
        if dtype == DTYPES[0] or subject[1] is None
    ]


def one_check(name: str, kernel: str | None, dtype: str) -> dict[str, Any]:
    if why := not_importable(kernel):
        return {"checks": [unchecked(name, kernel, dtype, "; ".join(why))]}
    own = {"kernel": kernel} if kernel else {}
    report = check(name, device=DEVICE, dtype=getattr(torch, dtype), quick=True, shrink=False, **own).to_dict()
    return {"checks": [report | {"subject": label(name, kernel)}]}


def unchecked(name: str, kernel: str | None, dtype: str, why: str = "it did not end here") -> dict[str, Any]:
    refused = [f"not checked: {why}"]
    return {"subject": label(name, kernel), "dtypes": [dtype], "passed": False, "refused": refused, "tests": []}


class Verdicts:
    """What the check part found, for `bench`. Without a finished check a backend is timed, and its rows say *unverified*."""

    def __init__(self, out: Path) -> None:
        held = read_part(out / "check.json") or {"jobs": {}, "machine": {}}
        jobs = held["jobs"] if identity(held["machine"]) == identity(here()) else {}  # of other code or another device
        finished = [report for job in jobs.values() if job["status"] == "ok" for report in job["found"]["checks"]]
        self.reports = {(report["subject"], *report["dtypes"]): report for report in finished}

    def report(self, subject: str, dtype: torch.dtype) -> dict[str, Any] | None:
        return self.reports.get((subject, str(dtype).removeprefix("torch.")))

    def __call__(self, name: str, device: str, dtype: torch.dtype, options: dict) -> tuple[str, list[str]]:
        kernel = options.get("kernel")
        if why := not_importable(kernel):
            return "refused", why
        report = self.report(label(name, kernel), dtype)
        if report is None or report["passed"]:
            return "ok", []
        failed = [test["name"] for test in report["tests"] if not test["passed"]]
        if failed:
            return "incorrect", [f"fails the quick check: {', '.join(failed)}"]
        return "refused", report["refused"] or ["the quick check could try nothing"]

    def mark(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write into each row with a time whether its backend passed the quick check here; 'flex: causal' is flex."""
        for row in rows:
            subject = row["backend"].removesuffix(", compiled").partition(":")[0]
            report = self.report(subject, SPEED)
            row["verified"] = report is not None and bool(report["passed"])
            if row["timing"] and not row["verified"]:
                row["reasons"] = [*row["reasons"], f"unverified: no finished check of {subject} here"]


# ---- the bare operators


def operators_jobs(out: Path) -> list[Job]:
    """Forward and backward of every backend, beside sdpa."""
    lengths = (64, 128) if SMALL else (1024, 4096, 16384)
    return [bench_job(name, operators, (name, None, lengths, str(out)), [name], "forward+backward") for name in names()]


def growth_jobs(out: Path) -> list[Job]:
    """The same up to 65,536 tokens."""
    lengths = (64, 128, 256) if SMALL else (4096, 16384, 65536)
    return [bench_job(name, operators, (name, None, lengths, str(out)), [name], "forward+backward") for name in names()]


def kernels_jobs(out: Path) -> list[Job]:
    """The library kernels, beside sdpa."""
    lengths = (64,) if SMALL else (4096, 16384)
    return [
        bench_job(
            label(*pair),
            operators,
            (*pair, lengths, str(out)),
            [label(*pair)],
            "forward+backward",
            not_importable(pair[1]),
        )
        for pair in library_kernels()
    ]


def operators(name: str, kernel: str | None, lengths: tuple[int, ...], out: str) -> dict[str, Any]:
    verdicts = Verdicts(Path(out))
    found = bench(
        list(dict.fromkeys(["sdpa", name])), ops=["forward+backward"], lengths=lengths, dtype=SPEED, device=DEVICE,
        options={name: {"kernel": kernel}} if kernel else {}, dense_masks=False, rounds=9,
        seconds=0.5 if SMALL else 1.0, verify=verdicts, **HEADS,
    )  # fmt: skip
    for row in found["rows"]:
        row["backend"] = label(row["backend"], kernel if row["backend"] == name else None)
    return rated(found, verdicts)


def bench_job(key: str, run: Callable, arguments: tuple, subjects: list[str], op: str, why: list[str] = ()) -> Job:
    """A job of `bench`; until it has ended its rows say why there is no number."""
    reasons = list(why) or ["it did not end here"]
    rows = [no_number(subject, op, reasons, "refused" if why else "interrupted") for subject in subjects]
    return Job(key, run, arguments, LONGEST, {"rows": rows})


def no_number(subject: str, op: str, reasons: list[str], status: str) -> dict[str, Any]:
    dtype = str(SPEED).removeprefix("torch.")
    empty = dict.fromkeys(("timing", "flops", "bytes", "peak_memory_bytes", "kernel", "T", "B", "H", "G", "D"))
    return {"backend": subject, "level": "gpu", "op": op, "dtype": dtype, **empty, "status": status, "reasons": reasons}


def rated(found: dict[str, Any], verdicts: Verdicts) -> dict[str, Any]:
    """What a job of `bench` keeps: rows with their verdicts, growth, and the rates of the device."""
    verdicts.mark(found["rows"])
    rates = {key: value for key, value in found["machine"].items() if key.endswith("_per_s")}
    return {"rows": found["rows"], "growth": found["growth"], "rates": rates}


# ---- races with targets


def window_jobs(out: Path) -> list[Job]:
    """FlexAttention and our window against full attention; FlexAttention with three masks; what is around the kernel."""
    return [bench_job(f"{key} race", one_race, (key, str(out)), [key], "race") for key in RACES]


def one_race(key: str, out: str) -> dict[str, Any]:
    race, verdicts = RACES[key](), Verdicts(Path(out))
    asked = {name: verdicts(name, DEVICE, SPEED, {}) for name in race.backends}
    wrong = [f"{name} {why}" for name, (status, reasons) in asked.items() if status == "incorrect" for why in reasons]
    rows, bars = forbidden(race, wrong) if wrong else run(race, seconds=1.0 if SMALL else 6.0, seed=0, device=DEVICE)
    verdicts.mark(row for row in rows if row["backend"] != BY_HAND)
    return {"rows": rows, "bars": bars}


def window_race() -> Race:
    n_tokens, window, heads, head_dim = (128, 16, 2, 16) if SMALL else (65536, 1024, 8, 64)
    backward = DEVICE == "cuda"  # FlexAttention has none on a CPU
    tensors = inputs(1, heads, n_tokens, head_dim, backward)
    entries = {
        "sdpa: full": lambda: attention(tensors, backward, "sdpa", Mask()),
        "flex": lambda: attention(tensors, backward, "flex", Mask(window=window)),
        "sliding_window": lambda: attention(tensors, backward, "sliding_window", Mask(), window=window),
    }
    work = f"window {window} against full attention, T {n_tokens}, forward{' + backward' if backward else ''}"
    bars = [Bar(work, name, ("sdpa: full",), None if SMALL else 15.0) for name in ("flex", "sliding_window")]
    return Race(work, shape(1, heads, n_tokens, head_dim), ("sdpa", "flex", "sliding_window"), entries, bars, rounds=9)


def masks_race() -> Race:
    """FlexAttention with three masks against sdpa, which is given the last two as dense ones."""
    batch, n_tokens, heads, head_dim = (2, 128, 2, 16) if SMALL else (2, 8192, 8, 64)
    backward = DEVICE == "cuda"
    tensors = inputs(batch, heads, n_tokens, head_dim, backward)
    ids = torch.arange(n_tokens, device=DEVICE).div(n_tokens // 4, rounding_mode="floor").expand(batch, -1)
    masks = {"causal": Mask(), "window": Mask(window=n_tokens // 8), "documents": Mask(documents=ids)}
    entries = {
        f"{name}: {which}": lambda name=name, mask=mask: attention(tensors, backward, name, mask)
        for which, mask in masks.items()
        for name in ("flex", "sdpa")
    }
    work = f"three masks, B {batch}, T {n_tokens}, forward{' + backward' if backward else ''}"
    bars = [Bar(f"{work}: {which}", f"flex: {which}", (f"sdpa: {which}",)) for which in masks]
    return Race(work, shape(batch, heads, n_tokens, head_dim), ("sdpa", "flex"), entries, bars, rounds=9)


def interface_race() -> Race:
    """`sdpa` through the interface against torch's function by hand, where the kernel takes least."""
    batch, heads, n_tokens, head_dim = (1, 2, 64, 16) if SMALL else (8, 12, 1024, 64)
    tensors = inputs(batch, heads, n_tokens, head_dim, True)
    entries = {
        "sdpa": lambda: attention(tensors, True, "sdpa", Mask()),
        BY_HAND: lambda: operator(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), tensors, True, lambda: None
        ),
    }
    work = f"what is around the kernel, B {batch}, T {n_tokens}, forward + backward"
    bars = [Bar(work, "sdpa", (BY_HAND,), None if SMALL else 1 / 1.1)]
    return Race(work, shape(batch, heads, n_tokens, head_dim), ("sdpa",), entries, bars, rounds=50)


RACES = {"masks": masks_race, "interface": interface_race, "window": window_race}


def attention(tensors: list[Tensor], backward: bool, name: str, mask: Mask, **options: int) -> Entry:
    attn = build(name, n_heads=tensors[0].shape[1], head_dim=tensors[0].shape[3], **options)
    return operator(lambda q, k, v: attn(q, k, v, mask), tensors, backward, lambda: attn.kernel)


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


# ---- inside a model


def train_jobs(out: Path) -> list[Job]:
    """A training step of 124 M parameters: sdpa as it is and compiled, then each backend beside it."""
    others = [name for name in names() if name != "sdpa"]
    groups = [["sdpa"], *(["sdpa", *others[at : at + TOGETHER]] for at in range(0, len(others), TOGETHER))]
    return [bench_job(" ".join(group), train, (group, str(out)), group, "train_step") for group in groups]


def train(group: list[str], out: str) -> dict[str, Any]:
    size = {**MODEL, "batch_size": 1, "lengths": (32,)} if SMALL else {**MODEL, "batch_size": 8, "lengths": (1024,)}
    verdicts = Verdicts(Path(out))
    found = bench(
        group, level="model", ops=["train_step"], dtype=SPEED, device=DEVICE, rounds=9, seconds=2.0, verify=verdicts,
        vocab_size=256 if SMALL else 50304, compiled=group == ["sdpa"] and not SMALL, **size,
    )  # fmt: skip
    rate = found["machine"]["matmul_flops_per_s"]
    for row in found["rows"]:
        if row["timing"]:
            row["tokens_per_s"] = 1000 * row["B"] * row["T"] / row["timing"]["median"]
            row["matmul_share"] = row["flops"] * 1000 / row["timing"]["median"] / rate
    bars = share_line(found["rows"], rate) if group == ["sdpa"] else []
    return {**rated(found, verdicts), "bars": bars}


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


def decode_jobs(out: Path) -> list[Job]:
    """Decoding at a short and a long context."""
    order = names()
    groups = [["sdpa", *order[at : at + TOGETHER]] for at in range(1, len(order), TOGETHER)]
    return [bench_job(" ".join(group), decode, (group, str(out)), group, "decode") for group in groups]


def decode(group: list[str], out: str) -> dict[str, Any]:
    size = {"lengths": (32, 64), "decode_tokens": 2} if SMALL else {"lengths": (1024, 32768), "decode_tokens": 16}
    verdicts = Verdicts(Path(out))
    return rated(
        bench(group, level="model", ops=["decode"], dtype=SPEED, device=DEVICE, rounds=9, seconds=2.0, verify=verdicts,
              **MODEL, **size), verdicts,
    )  # fmt: skip


PARTS = {
    "check": check_jobs,
    "operators": operators_jobs,
    "window": window_jobs,
    "train": train_jobs,
    "kernels": kernels_jobs,
    "decode": decode_jobs,
    "growth": growth_jobs,
}


def chosen(jobs: list[Job], only: str | None) -> list[Job]:
    """Those whose key holds one of the names as a word."""
    words = [word for word in (only or "").split(",") if word]
    return [job for job in jobs if set(words) & set(job.key.replace(",", " ").split())] if words else jobs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "page"])
    parser.add_argument("--seconds", type=float, help="of the part; what is not reached by then says so")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", help="names of backends or libraries, with commas; the others are left for later")
    arguments = parser.parse_args()
    if arguments.part == "page":
        return page(arguments.out, list(PARTS))
    if arguments.seconds is None or not arguments.seconds > 0:
        parser.error("--seconds N: more than 0")
    start = time.monotonic()
    part = Part(
        arguments.out / f"{arguments.part}.json",
        machine(DEVICE, SPEED, {}),
        "checks" if arguments.part == "check" else "rows",
    )
    jobs = chosen(PARTS[arguments.part](arguments.out), arguments.only)
    workers = 8 if arguments.part == "check" and not SMALL else 1
    left = run_jobs(part, jobs, arguments.seconds, workers)
    part.write()
    print(f"{arguments.part}: {time.monotonic() - start:.0f} s, {len(jobs) - len(left)} of {len(jobs)} jobs done")
    for key in left:
        print(f"  {key}: {part.jobs[key]['status']}: {'; '.join(part.jobs[key]['reasons'])}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
