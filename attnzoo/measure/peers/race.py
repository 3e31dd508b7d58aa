"""Contestants that do the same work in the same rounds, and the bars that ours is held to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch import finfo as precision_of

from attnzoo.errors import AttnzooError
from attnzoo.measure.interval import Interval, interval_of_median
from attnzoo.measure.latency import MOST_ROUNDS, Contestant, Timing, take_turns
from attnzoo.measure.outcome import outcome


class Differs(AttnzooError):
    """A peer computes something else than ours, so that its time would say nothing."""


@dataclass(frozen=True)
class Entry:
    """A contestant that is ready to run.

    Args:
        contestant: what is timed.
        kernel: names what ran, asked afterwards.
        state_bytes: of its decoding state.
        compile_s: what its first call took beyond a later one, where it is compiled.
    """

    contestant: Contestant
    kernel: Callable[[], str | None] = lambda: None
    state_bytes: int | None = None
    compile_s: float | None = None


@dataclass(frozen=True)
class Bar:
    """A line of the table: ours against the fastest (or smallest) of some others.

    Args:
        work: what the line says was done.
        ours, peers: names of contestants.
        factor: how many times as fast ours must be at least; None shows the ratio only.
        quantity: time or state_bytes.
        limit: name of a contestant that does only what nobody can leave out of the work (`attnzoo.measure.peers.limits`).
        unreachable: why no measurement here can answer; the figures are then of what the reason says.
    """

    work: str
    ours: str
    peers: tuple[str, ...]
    factor: float | None = None
    quantity: str = "time"
    limit: str | None = None
    unreachable: str | None = None


@dataclass(frozen=True)
class Race:
    """One piece of work.

    Args:
        work: what is done.
        shape: T, B, H, G, D and dtype of the rows.
        backends: the registered names that must pass their quick check before anything is timed.
        entries: name -> makes the contestant, comparing a peer's numbers with ours first; what it raises is the row's
            reason.
        rounds: at most so many.
    """

    work: str
    shape: Mapping[str, Any]
    backends: tuple[str, ...]
    entries: Mapping[str, Callable[[], Entry]]
    bars: Sequence[Bar]
    rounds: int = MOST_ROUNDS


def run(race: Race, *, seconds: float, seed: int, device: str = "cpu") -> tuple[list[dict], list[dict]]:
    """(rows of the contestants, in the form of `attnzoo.measure.bench`; lines of the bars), plain values."""
    entries: dict[str, Entry] = {}
    timings: dict[str, Timing] = {}
    for name, make in race.entries.items():
        try:
            entries[name] = make()
        except Exception as error:  # the row keeps the reason
            timings[name] = Timing(status=_status(error)[0], reasons=_status(error)[1])
    timings |= take_turns(
        {name: entry.contestant for name, entry in entries.items()},
        baseline={other: bar.ours for bar in race.bars for other in (*bar.peers, bar.limit) if other},
        rounds=race.rounds, seconds=seconds, warmup=1, seed=seed, device=device,
    )  # fmt: skip
    rows = [_row(race, name, entries.get(name), timings[name]) for name in race.entries]
    return rows, [_line(bar, entries, timings) for bar in race.bars]


def forbidden(race: Race, reasons: Sequence[str]) -> tuple[list[dict], list[dict]]:
    """What `run` gives where one of our backends may not be timed."""
    timing = Timing(status="incorrect", reasons=list(reasons))
    timings = dict.fromkeys(race.entries, timing)
    return [_row(race, name, None, timing) for name in race.entries], [_line(bar, {}, timings) for bar in race.bars]


def expect_same(theirs: Tensor, ours: Tensor, what: str) -> None:
    """Raise `Differs` unless two computations of one function over T ≤ 1024 tokens agree.

    Allowed is 1000 ulp of the largest value: phases of position T err by T ulp, and a few layers pass that on. A window
    wrong by one key of W moves the output by 1/W of its size, a thousand times more in float32.
    """
    allowed = 1000 * precision_of(ours.dtype).eps * ours.abs().max().item()
    off = (theirs.detach() - ours.detach()).abs().nan_to_num(float("inf")).max().item()
    if off > allowed:
        raise Differs(
            "it computes something else", [f"{what} differs from ours by {off:.3g}; rounding allows {allowed:.3g}"]
        )


def verdict(ratio: Interval, factor: float | None, at_most: Interval | None = None) -> str:
    """Whether a bar is met: by the interval, and where the bar lies inside it by the median, which is then said.

    Args:
        at_most: the ratio that the limit alone reaches; all of it under the bar puts the bar out of reach.

    >>> verdict(Interval(1.3, 1.1, 1.4), 1.2)
    'met, within noise'
    """
    if factor is None:
        return "no bar"
    word = "met" if ratio.median >= factor else "not met"
    if word == "not met" and at_most is not None and at_most.high < factor:
        return "out of reach"
    return word if ratio.low >= factor or ratio.high < factor else f"{word}, within noise"


def _status(error: Exception) -> tuple[str, list[str]]:
    if isinstance(error, Differs):
        return "incorrect", error.reasons
    if isinstance(error, ImportError):
        return "refused", [f"{error}: pip install 'attnzoo[peers]'"]
    return outcome(error)


def _row(race: Race, name: str, entry: Entry | None, timing: Timing) -> dict[str, Any]:
    done = entry is not None and timing.status == "ok"
    shown = timing.to_dict() | {"samples": timing.samples} if done else None
    return {
        "backend": name, "level": "peers", "op": race.work, **race.shape,
        "timing": shown, "flops": None, "bytes": None, "peak_memory_bytes": None,
        "state_bytes": entry.state_bytes if entry else None,
        "compile_s": entry.compile_s if entry else None,
        "kernel": entry.kernel() if entry and done else None,
        "status": timing.status, "reasons": timing.reasons,
    }  # fmt: skip


def _line(bar: Bar, entries: Mapping[str, Entry], timings: Mapping[str, Timing]) -> dict[str, Any]:
    """{work, quantity, peers, ours, peer, limit: {name, median, low, high}, ratio, at_most, rounds, bar, verdict, reasons}."""
    names = [name for name in (bar.ours, *bar.peers, bar.limit) if name]
    line: dict[str, Any] = {
        "work": bar.work, "quantity": bar.quantity, "bar": bar.factor, "ratio": None, "at_most": None, "rounds": 0,
        "ours": {"name": bar.ours}, "peer": {"name": " / ".join(bar.peers)}, "peers": list(bar.peers),
        "limit": {"name": bar.limit} if bar.limit else None, "verdict": "not measured",
        "reasons": [f"{name}: {reason}" for name in names for reason in timings[name].reasons],
    }  # fmt: skip
    measured = {name: samples for name in names if (samples := _samples(bar.quantity, entries, timings, name))}
    rivals = [name for name in bar.peers if name in measured]
    if bar.ours not in measured or not rivals:
        return line
    best = min(rivals, key=lambda name: interval_of_median(measured[name]).median)
    for side, name in (("ours", bar.ours), ("peer", best), ("limit", bar.limit)):
        if name in measured:
            line[side] = {"name": name, **vars(interval_of_median(measured[name]))}
    ratio = _ratio(measured[best], measured[bar.ours])
    at_most = _ratio(measured[best], measured[bar.limit]) if bar.limit and bar.limit in measured else None
    line |= {"ratio": vars(ratio), "at_most": at_most and vars(at_most), "verdict": verdict(ratio, bar.factor, at_most)}
    line["rounds"] = min(len(measured[name]) for name in (bar.ours, best))
    if bar.unreachable:
        line |= {"verdict": "not reachable here", "reasons": [bar.unreachable]}
    return line


def _ratio(theirs: Sequence[float], mine: Sequence[float]) -> Interval:
    """Theirs over mine, round by round."""
    return interval_of_median([other / own for other, own in zip(theirs, mine, strict=False)])


def _samples(quantity: str, entries: Mapping[str, Entry], timings: Mapping[str, Timing], name: str) -> list[float]:
    if name not in entries or timings[name].status != "ok":
        return []
    if quantity == "time":
        return timings[name].samples
    held = entries[name].state_bytes
    return [] if held is None else [float(held)]
