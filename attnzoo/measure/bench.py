"""Backends side by side over length, as bare operators or inside a model; all take turns in every round."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from attnzoo import registry
from attnzoo.errors import RequestError, unknown, unknown_backend
from attnzoo.measure.bench_row import Key, Setting, machine, row_of
from attnzoo.measure.bench_turns import OPS, Turns
from attnzoo.measure.latency import MOST_ROUNDS, Timing
from attnzoo.measure.limit import Limit
from attnzoo.measure.malloc import keep_freed_memory
from attnzoo.measure.roofline import RATES, machine_rates
from attnzoo.measure.trend import growth

Verify = Callable[[str, str, torch.dtype, dict], tuple[str, list[str]]]


def bench(
    names: Sequence[str],
    *,
    level: str = "operator",
    ops: Sequence[str] = (),
    lengths: Sequence[int] = (512, 1024, 2048),
    batch_size: int = 1,
    n_heads: int = 4,
    n_kv_heads: int | None = None,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    rounds: int = MOST_ROUNDS,
    seconds: float = 10.0,
    seed: int = 0,
    baseline: str = "sdpa",
    options: Mapping[str, dict] | None = None,
    dense_masks: bool = True,
    n_layers: int = 2,
    decode_tokens: int = 16,
    vocab_size: int = 256,
    compiled: bool = False,
    fresh_memory: bool = False,
    limit: float | Limit | None = None,
    verify: Verify | None = None,
) -> dict[str, Any]:
    """Measure the named backends at each length. From then on the process keeps memory that was freed: `keep_freed_memory`.

    Args:
        level: operator (forward, forward+backward), or model (train_step, prefill, decode and generate per token).
        ops: of these works of the level only those; all when empty.
        rounds, seconds: at most so many rounds of one work, and so long for each length; they end before when the
            interval of each ratio to the baseline is narrow (see `take_turns`).
        limit: seconds for everything: checks (at most half of it), warm-up, rounds, memory. What is not reached says so,
            and a call or check that has begun is finished.
        baseline: ratios refer to it where it is among the names.
        options: name -> the backend's own options.
        dense_masks: at operator level, also time SDPA given the pattern of each sparse backend as a dense mask.
        n_layers, vocab_size: of the model, whose width is H · D; it takes ``dtype`` bfloat16 by autocast.
        decode_tokens: tokens decoded or generated in one call.
        compiled: each backend also under torch.compile; ``compile_s`` of its rows is what the first call took longer.
        fresh_memory: peak memory of each row in a process of its own; slow.
        verify: (name, device, dtype, options) -> (status, reasons); `attnzoo.check` in its quick form when None. A
            backend whose status is not ok is not timed.

    Returns:
        {rows, growth, machine}, plain values: see `attnzoo.report.bench_table` for the columns.

    Raises:
        RequestError: an unknown backend, level or option, sizes out of range; every fault at once.
    """
    _check(names, level, ops, lengths, batch_size, rounds, seconds, options or {})
    limit = limit if isinstance(limit, Limit) else Limit.of(limit)
    setting = Setting(
        batch_size, n_heads, n_kv_heads, head_dim, dtype, device, n_layers, decode_tokens, seed, options or {}, vocab_size
    )  # fmt: skip
    keep_freed_memory()
    rates = machine_rates(device, dtype)
    verdicts = _verdicts(names, setting, verify or quick_check, limit.share(2))
    if verify is None or getattr(verify, "measured", False):
        verdicts |= {n: _measured(n, setting, max(lengths)) for n, found in verdicts.items() if found[0] == "ok"}
    turns = Turns(
        level, verdicts, setting, lengths, rounds=rounds, seconds=seconds, baseline=baseline, dense_masks=dense_masks,
        compiled=compiled, fresh_memory=fresh_memory,
    )  # fmt: skip
    chosen = _chosen(level, ops)
    rows: list[dict[str, Any]] = []
    limit = limit.share()
    for number, op in enumerate(chosen):
        rows += turns.rows(op, rates, limit.share(len(chosen) - number))
    return {"rows": rows, "growth": growth(rows, _declared(names, setting)), "machine": machine(device, dtype, rates)}


def bench_shapes(names: Sequence[str], shapes: Sequence[Mapping[str, Any]], **settings: Any) -> dict[str, Any]:
    """One benchmark of several shapes, each with its own rounds and ratios.

    Args:
        shapes: of each the arguments of `bench` that tell it from the others: batch_size, n_heads, n_kv_heads,
            head_dim, dtype.
        settings: the other arguments of `bench`; ``limit`` is of all shapes together.

    Returns:
        As `bench`; the machine's rates are named by the dtype where there are several.

    Raises:
        RequestError: as `bench`, before anything is measured.
    """
    verify = settings.pop("verify", None) or cache_of(quick_check)
    limit = Limit.of(settings.pop("limit", None))
    found = [
        bench(names, verify=verify, limit=limit.among(len(shapes) - number), **shape, **settings)
        for number, shape in enumerate(shapes)
    ]
    machines = [part["machine"] for part in found]
    whole = dict(machines[0])
    if len({each["dtype"] for each in machines}) > 1:
        whole = {key: value for key, value in whole.items() if key not in RATES}
        whole |= {f"{key}_{each['dtype']}": each[key] for each in machines for key in RATES}
        whole["dtype"] = ", ".join(dict.fromkeys(each["dtype"] for each in machines))
    return {key: [line for part in found for line in part[key]] for key in ("rows", "growth")} | {"machine": whole}


def planned(
    names: Sequence[str],
    shapes: Sequence[Mapping[str, Any]],
    *,
    level: str = "operator",
    ops: Sequence[str] = (),
    lengths: Sequence[int] = (),
    compiled: bool = False,
) -> dict[str, Any]:
    """{rows} of `bench_shapes` with nothing measured: what tells them apart. Those of dense masks, which never come
    alone, are left out."""
    rows = []
    for shape, op, n, name in itertools.product(shapes, _chosen(level, ops), lengths, names):
        heads = Setting(**{"n_kv_heads": None, **shape}, device="cpu", n_layers=1, decode_tokens=1, seed=0)
        for how in (False, True)[: 1 + compiled]:
            key, place = Key(name, n, how), {"level": level, "op": op}
            rows.append(row_of(key, place, heads, None, Timing(status="planned"), {}))
    return {"rows": rows}


def _chosen(level: str, ops: Sequence[str]) -> list[str]:
    return [op for op in OPS[level] if op in ops or not ops]


def cache_of(verify: Verify) -> Verify:
    """The same, asked once for a backend, device and dtype."""
    known: dict[tuple, tuple[str, list[str]]] = {}

    def once(name: str, device: str, dtype: torch.dtype, options: dict) -> tuple[str, list[str]]:
        key = (name, device, dtype)
        if key not in known:
            known[key] = verify(name, device, dtype, options)
        return known[key]

    once.measured = verify is quick_check  # type: ignore[attr-defined]
    return once


def quick_check(name: str, device: str, dtype: torch.dtype, options: dict) -> tuple[str, list[str]]:
    """No speed without correctness: the verdict of the quick conformance check on this device."""
    from attnzoo.checks import check

    report = check(name, device=device, dtype=dtype, quick=True, shrink=False, **options)
    if report.failures:
        return "incorrect", [f"fails the quick check: {', '.join(report.failed_checks())}"]
    if not report.passed:
        return "refused", report.refused or ["the quick check could try nothing"]
    return "ok", []


def _measured(name: str, setting: Setting, n_tokens: int) -> tuple[str, list[str]]:
    """The verdict at the longest measured length, in the measured batch, heads and type."""
    from attnzoo.checks.measured import measured_size
    from attnzoo.checks.report import FAILED

    sizes: dict[str, Any] = {"n_heads": setting.n_heads, "n_kv_heads": setting.n_kv_heads, "head_dim": setting.head_dim}
    options, width = setting.options.get(name, {}), setting.n_heads * setting.head_dim
    kind = registry.get(name)
    asked = {**sizes, "n_kv_heads": setting.n_kv_heads or kind.default_kv_heads(setting.n_heads)}
    trains = not registry.why_not(name, device=setting.device, dtype=setting.dtype, training=True, **asked, **options)
    if registry.why_not(name, device=setting.device, dtype=setting.dtype, training=False, **asked, **options):
        return "ok", []  # refused where it is built, with the reasons
    attention = registry.build(name, **sizes, d_model=width, **options)
    found = measured_size(
        attention,
        batch=setting.batch_size,
        n_tokens=n_tokens,
        dtype=setting.dtype,
        device=setting.device,
        training=trains,
    )
    wrong = [f"{r.where}: expected {r.expected}, got {r.actual} {r.detail}" for r in found if r.status == FAILED]
    return ("incorrect", [f"at {n_tokens} tokens it is not its definition: {wrong[0]}"]) if wrong else ("ok", [])


def _verdicts(names: Sequence[str], setting: Setting, verify: Verify, limit: Limit) -> dict[str, tuple[str, list[str]]]:
    """Of each backend whether it is correct, as far as the limit allows to ask."""
    found = {}
    for name in names:
        if limit.left:
            found[name] = verify(name, setting.device, setting.dtype, setting.options.get(name, {}))
        else:
            found[name] = ("interrupted", [limit.over_before("its quick check")])
    return found


def _declared(names: Sequence[str], setting: Setting) -> dict[tuple[str, str, str], float]:
    """What each backend claims: time and memory of the operator and of training, and decoding, which reads the state."""
    claims = {}
    for name in names:
        options = registry.parse_options(name, setting.options.get(name, {}))
        can = registry.get(name).declared(options, torch.device(setting.device).type)
        for op in ("forward", "forward+backward", "train_step", "prefill"):
            claims[name, op, "time"], claims[name, op, "memory"] = can.time, can.memory
        claims[name, "decode", "time"] = can.state
    return claims


def _check(names, level: str, ops, lengths, batch_size: int, rounds: int, seconds: float, options) -> None:
    known = registry.list_backends()
    faults = [] if level in OPS else [unknown("level", level, OPS)]
    faults += [
        unknown(f"work of the level {level}", op, OPS[level]) for op in ops if level in OPS and op not in OPS[level]
    ]
    faults += [f"options for {name}, which is not measured" for name in options if name not in names]
    faults += [unknown_backend(name, known) for name in names if name not in known]
    faults += [] if names else ["no backend was named"]
    faults += [f"length {n}: at least 1" for n in lengths if n < 1] or ([] if lengths else ["no length was given"])
    faults += [f"{what}={n}: at least 1" for what, n in (("batch_size", batch_size), ("rounds", rounds)) if n < 1]
    faults += [] if seconds > 0 else [f"seconds={seconds}: more than 0"]
    for name in [name for name in names if name in known and name in options]:
        try:
            registry.parse_options(name, options[name])
        except RequestError as error:
            faults += [f"{name}: {reason}" for reason in error.reasons or [error.message]]
    if faults:
        raise RequestError("this cannot be measured", faults)
