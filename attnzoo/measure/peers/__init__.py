"""What people would use instead, in the same rounds: every race, and the table of its bars.

A peer's package is imported by its race alone; where it is missing the row says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from attnzoo.errors import RequestError, unknown
from attnzoo.measure.bench import Verify, quick_check
from attnzoo.measure.bench_row import machine
from attnzoo.measure.malloc import keep_freed_memory
from attnzoo.measure.peers import decoding, operators, training
from attnzoo.measure.peers.race import Race, forbidden, run
from attnzoo.measure.peers.sizes import FULL, QUICK, Sizes
from attnzoo.measure.roofline import machine_rates

RACES: dict[str, Callable[[Sizes, int], Iterator[Race]]] = {
    "train": training.train_races,
    "bf16": training.bf16_races,
    "window": operators.window_races,
    "linear": operators.linear_races,
    "block_sparse": operators.block_sparse_races,
    "decode": decoding.decode_races,
    "flat": decoding.flat_races,
    "gqa": decoding.grouped_races,
}


def bench_peers(
    names: Sequence[str] = (),
    *,
    quick: bool = False,
    seconds: float = 10.0,
    seed: int = 0,
    keep_freed: bool = False,
    verify: Verify | None = None,
) -> dict[str, Any]:
    """Run the named races, all of them by default, on the CPU in float32.

    Args:
        quick: small sizes, which show that everything runs and no more.
        keep_freed: from then on the process keeps memory that was freed, of ours and of peers alike (`keep_freed_memory`), as
            the bench of backends does; otherwise the allocator is as people find it, and large tensors cost page faults.
        seconds: time limit of the rounds of each race.
        verify: as in `attnzoo.measure.bench.bench`.

    Returns:
        {rows: every contestant, bars: the lines of the table, growth: [], machine}, plain values.

    Raises:
        RequestError: an unknown race.
    """
    check_races(names)
    if keep_freed:
        keep_freed_memory()
    rates = machine_rates("cpu", torch.float32)
    verdicts: dict[str, list[str]] = {}
    rows: list[dict] = []
    bars: list[dict] = []
    for name in names or RACES:
        for race in RACES[name](QUICK if quick else FULL, seed):
            faults = []
            for backend in race.backends:
                if backend not in verdicts:
                    status, reasons = (verify or quick_check)(backend, "cpu", torch.float32, {})
                    verdicts[backend] = [] if status == "ok" else reasons
                faults += verdicts[backend]
            more_rows, lines = forbidden(race, faults) if faults else run(race, seconds=seconds, seed=seed)
            rows += more_rows
            bars += [{"race": name, **line} for line in lines]
    return {"rows": rows, "bars": bars, "growth": [], "machine": machine("cpu", torch.float32, rates)}


def check_races(names: Sequence[str], old: Mapping[str, Any] | None = None) -> None:
    """Before anything is measured.

    Args:
        old: an older result that the new one is to be held against.

    Raises:
        RequestError: an unknown race, or none that the older result has. (Whether the sizes are the same is seen when both
            are there.)
    """
    faults = [unknown("race", name, RACES) for name in names if name not in RACES]
    if faults:
        raise RequestError("this cannot be measured", faults)
    there = {bar.get("race") for bar in (old or {}).get("bars") or ()}
    if old is not None and not there & set(names or RACES):
        kept = ", ".join(sorted(filter(None, there))) or "no races"
        raise RequestError(
            "the two benchmarks have no line in common", [f"races: here {', '.join(names or RACES)}, there {kept}"]
        )
