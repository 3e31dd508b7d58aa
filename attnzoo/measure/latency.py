"""Latency of several contestants in one run: all take turns, so that a drifting machine hits all alike."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from attnzoo.measure.interval import Interval, interval_of_median
from attnzoo.measure.limit import Limit
from attnzoo.measure.outcome import outcome

FEWEST_ROUNDS = 6  # the fewest for which order statistics reach 95 %: 1 - 2/2^6 = 96.9 %
MOST_ROUNDS = 200  # of a bench, whose rounds end when intervals are narrow or the time is over
TOO_SLOW = "too slow for the time limit with fewer tokens already"
SHORTEST_SAMPLE = 0.002  # seconds; a shorter contestant is called several times in a row


Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Contestant:
    """Something to be timed.

    Args:
        run: the work.
        prepare: brings back the starting point before each timed call, outside the timing.
        units: what one call does, as a divisor (tokens decoded, …).
    """

    run: Callable[[], object]
    prepare: Callable[[], object] | None = None
    units: int = 1


@dataclass
class Timing:
    """What was measured of one contestant.

    Args:
        samples: milliseconds a unit, one a round, outliers kept.
        first_ms: the very first call, compilation and allocation included.
        to, ratios: name of the baseline, and this contestant's time over the baseline's in the same round.
        status, reasons: refused, oom or failed, and why, when it raised, or interrupted; it takes no further turns.
    """

    samples: list[float] = field(default_factory=list)
    first_ms: float | None = None
    to: Any = None
    ratios: list[float] = field(default_factory=list)
    status: str = "ok"
    reasons: list[str] = field(default_factory=list)

    @property
    def interval(self) -> Interval | None:
        """Of the median time, in milliseconds; None when it did not run."""
        return interval_of_median(self.samples) if self.status == "ok" and self.samples else None

    @property
    def ratio(self) -> Interval | None:
        """Of the median ratio to the baseline; above 1 is slower. None for the baseline itself."""
        return interval_of_median(self.ratios) if self.status == "ok" and self.ratios else None

    def to_dict(self) -> dict:
        """The form of the record: {median, low, high, rounds, first, ratio: {to, median, low, high} | None}, ms."""
        own, ratio = self.interval, self.ratio
        shown: dict = {"median": None, "low": None, "high": None} if own is None else vars(own).copy()
        shown |= {"rounds": len(self.samples), "first": self.first_ms}
        shown["ratio"] = None if ratio is None else {"to": self.to, **vars(ratio)}
        return shown if self.status == "ok" else {**shown, "status": self.status, "reasons": self.reasons}


def take_turns(
    contestants: Mapping[Name, Callable[[], object] | Contestant],
    *,
    baseline: Name | Mapping[Name, Name] | None = None,
    rounds: int = 15,
    seconds: float = 30.0,
    warmup: int = 2,
    narrow: float = 0.05,
    seed: int = 0,
    device: str = "cpu",
    limit: Limit | None = None,
    leave: float = 0.0,
    easier: Mapping[Name, Name] | None = None,
) -> dict[Name, Timing]:
    """Time all contestants together.

    Each round calls every contestant once, in an order shuffled anew. Rounds end when the interval of each ratio to the
    baseline (of each median without one) is narrower than ``narrow``, relative, or after ``rounds``, or when
    ``seconds`` are over; never before `FEWEST_ROUNDS` unless ``rounds`` is less. The device is synchronised around
    every sample.

    Args:
        baseline: name of the contestant that ratios refer to, or name -> that name; when it fails there are no ratios.
        warmup: untimed calls of each, at least one.
        limit: for everything, half of it at most for warming up, so that who was warmed up is timed too. No call begins
            after it, nor a timed one that would not end within it by what the last warm-up took. Who gets no timed call
            so, or takes more than a tenth of it for one call, is interrupted and says so.
        easier: name -> one listed before it that takes no longer: where that was too slow, this one is not called at all.
        leave: of the limit the rounds leave this many times what one call of each takes, but at most half of it.

    Returns:
        A `Timing` for each name, in the order given; one that raised carries its status and reasons.
    """
    entries = {n: c if isinstance(c, Contestant) else Contestant(c) for n, c in contestants.items()}
    timings = {name: Timing() for name in entries}
    limit = limit or Limit()
    calls, cost = {}, {}
    first_half = limit.share(2)
    for name, entry in entries.items():
        known = timings.get(easier[name]) if easier and name in easier else None
        if known is not None and known.status == "interrupted" and first_half.left:
            _interrupt(timings[name], TOO_SLOW)
        calls[name], cost[name] = _warm_up(entry, timings[name], max(warmup, 1), device, first_half)
    order, shuffle = list(entries), random.Random(seed)
    start = time.perf_counter()
    running = [name for name, timing in timings.items() if timing.status == "ok"]
    end = max(limit.end - leave * sum(cost[name] for name in running), start + limit.left / 2)
    for done in range(1, rounds + 1):
        shuffle.shuffle(order)
        last = False
        for name in order:
            if timings[name].status != "ok":
                continue
            if time.perf_counter() + cost[name] > end:
                last = True  # the others have their turn still, where it fits
            else:
                _turn(entries[name], timings[name], calls[name], device)
        _pair(timings, baseline)
        enough = done >= FEWEST_ROUNDS and (time.perf_counter() - start > seconds or _widest(timings) <= narrow)
        if enough or last:
            break
    for timing in timings.values():
        if timing.status == "ok" and not timing.samples:
            _interrupt(timing, limit.over_before("its first timed call"))
    return timings


def synchronize(device: str) -> None:
    """Wait until the device has done all it was told to do."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def _warm_up(contestant: Contestant, timing: Timing, times: int, device: str, limit: Limit) -> tuple[int, float]:
    """Untimed calls; returns how many calls make one sample, and the seconds of the last one with its preparation. One
    call may take a fifth of the limit, the first one more."""
    last = cost = 0.0
    for number in range(times):
        if timing.status != "ok":
            break
        if not limit.left:
            _interrupt(timing, limit.over_before("its warm-up" if number else "its turn"))
            break
        start = time.perf_counter()
        _turn(contestant, timing, 1, device)
        cost = time.perf_counter() - start
        if timing.samples:
            last = timing.samples[-1] * contestant.units / 1000
            timing.first_ms = timing.first_ms or last * 1000
    timing.samples.clear()
    if timing.status == "ok" and last > limit.seconds / 5:
        warming = f"the {limit.seconds:.3g} s that the time limit leaves for warming up"
        _interrupt(timing, f"one call takes {last:.3g} s, more than a fifth of {warming}")
    return 1 if contestant.prepare else max(1, min(100, math.ceil(SHORTEST_SAMPLE / max(last, 1e-9)))), cost


def _interrupt(timing: Timing, reason: str) -> None:
    timing.status, timing.reasons = "interrupted", [reason]


def _turn(contestant: Contestant, timing: Timing, calls: int, device: str) -> None:
    """One sample, or the end of this contestant with its reason."""
    try:
        if contestant.prepare:
            contestant.prepare()
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            contestant.run()
        synchronize(device)
        timing.samples.append((time.perf_counter() - start) * 1000 / calls / contestant.units)
    except Exception as error:  # one contestant must not end the others' measurement; the reason stays in its row
        timing.status, timing.reasons = outcome(error)


def _pair(timings: Mapping[Name, Timing], baseline: Name | Mapping[Name, Name] | None) -> None:
    """Ratios to the baseline within each round."""
    for name, timing in timings.items():
        to = baseline.get(name) if isinstance(baseline, Mapping) else baseline
        base = timings.get(to) if to is not None else None
        timing.to, timing.ratios = None, []
        if base is not None and base.status == "ok" and timing is not base:
            timing.to = to
            timing.ratios = [mine / theirs for mine, theirs in zip(timing.samples, base.samples, strict=False)]


def _widest(timings: Mapping[Name, Timing]) -> float:
    """The widest relative interval of a ratio, or of a median where there are no ratios at all."""
    ratios = [t.ratio for t in timings.values()]
    intervals = ratios if any(ratios) else [t.interval for t in timings.values()]
    return max((i.width for i in intervals if i is not None), default=0.0)
