"""One work of a benchmark: what is built for it, timed in turns, and written into rows."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from attnzoo import registry
from attnzoo.measure.bench_row import Key, Setting, Work, row_of
from attnzoo.measure.latency import Timing, take_turns
from attnzoo.measure.limit import Limit
from attnzoo.measure.memory import peak_memory
from attnzoo.measure.outcome import outcome

OPS = {"operator": ("forward", "forward+backward"), "model": ("train_step", "prefill", "decode", "generate")}
WEIGHING = 4.0  # times what a call takes, to measure its memory; decoding, whose calls allocate often, took 3 to 7
HALF = 1e9  # whatever the calls take: half of the limit is for processes, which take seconds each
Verdict = tuple[str, list[str]]
"""A status and its reasons."""


@dataclass(frozen=True)
class Turns:
    """What the works of one benchmark share; see `attnzoo.measure.bench.bench`. ``verdicts``: of each backend, whether it is
    correct."""

    level: str
    verdicts: Mapping[str, Verdict]
    setting: Setting
    lengths: Sequence[int]
    rounds: int
    seconds: float
    baseline: str
    dense_masks: bool
    compiled: bool
    fresh_memory: bool

    def rows(self, op: str, rates: dict[str, float], limit: Limit) -> list[dict[str, Any]]:
        """A row for each backend and length."""
        from attnzoo.measure import bench_operator

        try:
            return self._rows(op, rates, limit)
        finally:
            bench_operator.forget_inputs()

    def _rows(self, op: str, rates: dict[str, float], limit: Limit) -> list[dict[str, Any]]:
        works, refused = self.works(op, limit)
        with _room_for_graphs(len(works)) if self.compiled else nullcontext():
            timings = take_turns(
                {key: work.contestant for key, work in works.items()},
                baseline={key: key.at(self.baseline) for key in works},
                easier=_shorter(works),
                rounds=self.rounds, seconds=self.seconds * len(self.lengths), seed=self.setting.seed,
                device=self.setting.device, limit=limit, leave=HALF if self.fresh_memory else WEIGHING,
            )  # fmt: skip
        timings |= {key: Timing(status=status, reasons=reasons) for key, (status, reasons) in refused.items()}
        rows = []
        with _frozen():
            for key in sorted(timings, key=lambda key: key.n_tokens):  # a stable sort: the names keep their order
                row = row_of(key, {"level": self.level, "op": op}, self.setting, works.get(key), timings[key], rates)
                if row["status"] == "ok":
                    row |= self._weigh(key, op, works[key], limit)
                rows.append(row)
        return rows

    def _weigh(self, key: Key, op: str, work: Work, limit: Limit) -> dict[str, Any]:
        """The memory columns of a row, from a process of its own where that was asked for."""
        if not limit.left:
            return {"reasons": [limit.over_before("its memory was measured")]}
        if self.fresh_memory and not key.compiled and key.name in registry.list_backends():
            return _fresh(self.level, key, op, self.setting, limit)
        work.ready()
        return {"peak_memory_bytes": peak_memory(work.contestant.run, self.setting.device)[0]}

    def works(self, op: str, limit: Limit) -> tuple[dict[Key, Work], dict[Key, Verdict]]:
        """Those that can, and those that cannot; all lengths together, so that the growth between them is measured in the
        same rounds too."""
        from attnzoo.measure import bench_operator

        make = maker(self.level)
        works: dict[Key, Work] = {}
        refused: dict[Key, Verdict] = {}
        for n_tokens in sorted(self.lengths):
            for key in (
                Key(name, n_tokens, how) for name in self.verdicts for how in (False, True)[: 1 + self.compiled]
            ):
                status, reasons = self.verdicts[key.name]
                if status == "ok" and not limit.left:
                    status, reasons = "interrupted", [limit.over_before("it was built")]
                if status == "ok":
                    try:
                        works[key] = make(key.name, op, self.setting, n_tokens, key.compiled)
                        continue
                    except Exception as error:  # the row keeps the reason
                        status, reasons = outcome(error)
                refused[key] = (status, reasons)
            if self.level == "operator" and self.dense_masks:
                able = [name for name in self.verdicts if Key(name, n_tokens) in works]
                extra = bench_operator.dense_masks(able, op, self.setting, n_tokens)
                works |= {Key(name, n_tokens): work for name, work in extra.items()}
        return works, refused


def maker(level: str) -> Callable[..., Work]:
    """(name, op, setting, T, compiled) -> `Work` of the level."""
    from attnzoo.measure import bench_model, bench_operator

    return bench_operator.make if level == "operator" else bench_model.make


def _shorter(keys: Iterable[Key]) -> dict[Key, Key]:
    """key -> the same contestant at the next shorter length; the keys come in the order of their lengths."""
    found: dict[Key, Key] = {}
    last: dict[tuple, Key] = {}
    for key in keys:
        who = (key.name, key.compiled)
        if who in last:
            found[key] = last[who]
        last[who] = key
    return found


@contextmanager
def _room_for_graphs(n: int) -> Iterator[None]:
    """torch.compile goes back to eager in silence after 8 graphs of one function; all backends share their base's."""
    before = torch._dynamo.config.recompile_limit
    torch._dynamo.config.recompile_limit = max(before, 2 * n)
    try:
        yield
    finally:
        torch._dynamo.config.recompile_limit = before


@contextmanager
def _frozen() -> Iterator[None]:
    """Garbage is looked for among what is made from here on: going through all of torch takes longer than most calls."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _fresh(level: str, key: Key, op: str, setting: Setting, limit: Limit) -> dict[str, Any]:
    from attnzoo.measure.fresh import LONGEST, fresh_peak

    found = fresh_peak(level, key.name, op, setting, key.n_tokens, timeout=min(LONGEST, limit.left))
    return {
        "peak_memory_bytes": found["bytes"],
        "memory_method": found["method"],
        "process_peak_bytes": found["process_bytes"],
        "process_method": found["process_method"],
        "reasons": found["reasons"],
    }
