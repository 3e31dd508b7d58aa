"""Backends side by side over length, as bare operators or inside a model; all take turns in every round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from attnzoo import registry
from attnzoo.errors import RequestError, unknown
from attnzoo.measure.environment import environment
from attnzoo.measure.latency import Contestant, Timing, take_turns
from attnzoo.measure.memory import CPU_METHOD, CUDA_METHOD, peak_memory
from attnzoo.measure.outcome import outcome
from attnzoo.measure.roofline import machine_rates, reach
from attnzoo.measure.trend import growth

LEVELS = ("operator", "model")
Verify = Callable[[str, str, torch.dtype, dict], tuple[str, list[str]]]


@dataclass(frozen=True)
class Setting:
    """What all rows of one benchmark share; see `bench`."""

    batch_size: int
    n_heads: int
    n_kv_heads: int | None
    head_dim: int
    dtype: torch.dtype
    device: str
    n_layers: int
    decode_tokens: int
    seed: int
    options: Mapping[str, dict] = field(default_factory=dict)


@dataclass
class Work:
    """One piece of work of one backend at one length.

    Args:
        contestant: what is timed.
        flops, bytes: by formula; bytes 0 where there is none.
        kernel: names what ran, asked after it ran.
        weigh: what peak memory is taken of; None leaves it out.
        extra: further columns of the row.
    """

    contestant: Contestant
    n_kv_heads: int
    flops: float = 0.0
    bytes: float = 0.0
    kernel: Callable[[], str | None] = lambda: None
    weigh: Callable[[], object] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class Key(NamedTuple):
    """One contestant: a backend at one length."""

    name: str
    n_tokens: int

    def at(self, name: str) -> Key:
        """Another backend at the same length."""
        return Key(name, self.n_tokens)


def bench(
    names: Sequence[str],
    *,
    level: str = "operator",
    lengths: Sequence[int] = (512, 1024, 2048),
    batch_size: int = 1,
    n_heads: int = 4,
    n_kv_heads: int | None = None,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    rounds: int = 15,
    seconds: float = 20.0,
    seed: int = 0,
    baseline: str = "sdpa",
    options: Mapping[str, dict] | None = None,
    dense_masks: bool = True,
    n_layers: int = 2,
    decode_tokens: int = 16,
    verify: Verify | None = None,
) -> dict[str, Any]:
    """Measure the named backends at each length.

    Args:
        level: operator (forward, forward+backward), or model (train_step, prefill, decode per token).
        rounds, seconds: at most so many rounds of one work, and so long for each length.
        baseline: ratios refer to it where it is among the names.
        options: name -> the backend's own options.
        dense_masks: at operator level, also time SDPA given the pattern of each sparse backend as a dense mask.
        n_layers: of the model, whose width is H · D; it takes ``dtype`` bfloat16 by autocast.
        verify: (name, device, dtype, options) -> (status, reasons); `attnzoo.check` in its quick form when None. A
            backend whose status is not ok is not timed.

    Returns:
        {rows, growth, machine}, plain values: see `attnzoo.report.bench_table` for the columns.

    Raises:
        RequestError: an unknown backend, level or option, sizes out of range; every fault at once.
    """
    _check(names, level, lengths, batch_size, rounds, seconds)
    setting = Setting(
        batch_size, n_heads, n_kv_heads, head_dim, dtype, device, n_layers, decode_tokens, seed, options or {}
    )
    rates = machine_rates(device, dtype)
    verdicts = {name: (verify or quick_check)(name, device, dtype, setting.options.get(name, {})) for name in names}
    rows: list[dict[str, Any]] = []
    for op, works, refused in _works(level, names, verdicts, setting, lengths, dense_masks):
        timings = take_turns(
            {key: work.contestant for key, work in works.items()},
            baseline={key: key.at(baseline) for key in works},
            rounds=rounds, seconds=seconds * len(lengths), seed=seed, device=device,
        )  # fmt: skip
        timings |= {key: Timing(status=status, reasons=reasons) for key, (status, reasons) in refused.items()}
        for key in sorted(timings, key=lambda key: key.n_tokens):  # a stable sort: the names keep their order
            rows.append(_row(key, {"level": level, "op": op}, setting, works.get(key), timings[key], rates))
    return {"rows": rows, "growth": growth(rows, _declared(names)), "machine": _machine(device, dtype, rates)}


def quick_check(name: str, device: str, dtype: torch.dtype, options: dict) -> tuple[str, list[str]]:
    """No speed without correctness: the verdict of the quick conformance check on this device."""
    from attnzoo.checks import check

    report = check(name, device=device, dtype=dtype, quick=True, shrink=False, **options)
    if report.failures:
        return "incorrect", [f"fails the quick check: {', '.join(report.failed_checks())}"]
    if not report.passed:
        return "refused", report.refused or ["the quick check could try nothing"]
    return "ok", []


def _works(level: str, names, verdicts, setting: Setting, lengths: Sequence[int], dense_masks: bool):
    """(op, key -> work, key -> (status, reasons) of those that cannot) for each op of the level; all lengths together, so
    that the growth between them is measured in the same rounds too."""
    from attnzoo.measure import bench_model, bench_operator

    source = bench_operator if level == "operator" else bench_model
    for op in source.OPS:
        works: dict[Key, Work] = {}
        refused: dict[Key, tuple[str, list[str]]] = {}
        for n_tokens in lengths:
            for name in names:
                key, (status, reasons) = Key(name, n_tokens), verdicts[name]
                if status == "ok":
                    try:
                        works[key] = source.make(name, op, setting, n_tokens)
                        continue
                    except Exception as error:  # the row keeps the reason
                        status, reasons = outcome(error)
                refused[key] = (status, reasons)
            if level == "operator" and dense_masks:
                able = [name for name in names if Key(name, n_tokens) in works]
                extra = bench_operator.dense_masks(able, op, setting, n_tokens)
                works |= {Key(name, n_tokens): work for name, work in extra.items()}
        yield op, works, refused


def _row(key: Key, place: dict, setting: Setting, work: Work | None, timing: Timing, rates: dict) -> dict[str, Any]:
    row = {
        "backend": key.name,
        **place,
        "T": key.n_tokens,
        "B": setting.batch_size,
        "H": setting.n_heads,
        "G": None if work is None else work.n_kv_heads,
        "D": setting.head_dim,
        "dtype": str(setting.dtype).removeprefix("torch."),
        "timing": None,
        "flops": None,
        "bytes": None,
        "peak_memory_bytes": None,
        "kernel": None,
        "status": timing.status,
        "reasons": timing.reasons,
    }
    if work is None or timing.status != "ok":
        return row
    shown = timing.to_dict() | {"samples": timing.samples}
    if shown["ratio"]:
        shown["ratio"]["to"] = timing.to.name
    row |= {"timing": shown, "flops": work.flops, "bytes": work.bytes or None, "kernel": work.kernel()}
    row |= reach(work.flops, work.bytes, timing.interval.median if timing.interval else None, rates) | work.extra
    if work.weigh is not None:
        row["peak_memory_bytes"] = peak_memory(work.weigh, setting.device)[0]
    return row


def _declared(names: Sequence[str]) -> dict[tuple[str, str, str], float]:
    """What each backend claims: time and memory of the operator and of training, and decoding, which reads the state."""
    claims = {}
    for name in names:
        can = registry.get(name).capabilities
        for op in ("forward", "forward+backward", "train_step", "prefill"):
            claims[name, op, "time"], claims[name, op, "memory"] = can.time, can.memory
        claims[name, "decode", "time"] = can.state
    return claims


def _machine(device: str, dtype: torch.dtype, rates: dict[str, float]) -> dict[str, Any]:
    around = environment(device)
    keep = ("attnzoo", "python", "torch", "os", "device", "device_name", "cpu", "threads", "git_commit", "git_dirty")
    method = CUDA_METHOD if torch.device(device).type == "cuda" else CPU_METHOD
    shown = {key: around[key] for key in (*keep, "command", "start")}
    return {**shown, "dtype": str(dtype).removeprefix("torch."), **rates, "memory_method": method}


def _check(names, level: str, lengths, batch_size: int, rounds: int, seconds: float) -> None:
    known = registry.list_backends()
    faults = [] if level in LEVELS else [unknown("level", level, LEVELS)]
    faults += [unknown("backend", name, known) for name in names if name not in known]
    faults += [] if names else ["no backend was named"]
    faults += [f"length {n}: at least 1" for n in lengths if n < 1] or ([] if lengths else ["no length was given"])
    faults += [f"{what}={n}: at least 1" for what, n in (("batch_size", batch_size), ("rounds", rounds)) if n < 1]
    faults += [] if seconds > 0 else [f"seconds={seconds}: more than 0"]
    if faults:
        raise RequestError("this cannot be measured", faults)
