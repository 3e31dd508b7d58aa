import itertools
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnzoo.errors import Refused, RequestError
from attnzoo.measure import latency
from attnzoo.measure.latency import Contestant, interval_of_median, take_turns


def coverage(n: int, low: int, high: int) -> float:
    """Exactly: how often the k-th smallest … k-th largest of n fair coin sides straddle the median."""
    hits = sum(low + 1 <= sum(sides) <= n - low - 1 for sides in itertools.product((0, 1), repeat=n))
    return hits / 2**n


@pytest.mark.parametrize("n", range(6, 15))
def test_interval_covers_95_percent_and_no_tighter_one_does(n):
    ordered = list(range(n))
    interval = interval_of_median(ordered)
    k = interval.low
    assert interval.high == n - 1 - k
    assert coverage(n, k, interval.high) >= 0.95
    assert coverage(n, k + 1, interval.high - 1) < 0.95


def test_the_interval_narrows_with_any_number_of_samples():
    widths = [interval_of_median([1 + i / n for i in range(n)]).width for n in (50, 200, 1000, 5000)]
    expected = [1.96 / n**0.5 / 1.5 for n in (50, 200, 1000, 5000)]  # the normal approximation, around a median of 1.5
    assert widths == pytest.approx(expected, rel=0.15)


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=40))
def test_interval_is_ordered_and_within_the_samples(samples):
    interval = interval_of_median(samples)
    assert min(samples) <= interval.low <= interval.median <= interval.high <= max(samples)
    if len(samples) < 6:
        assert (interval.low, interval.high) == (min(samples), max(samples))


def test_each_contestant_may_have_a_baseline_of_its_own(monkeypatch):
    clock = Clock(monkeypatch)
    works = {(n, k): clock.work((n, k), n * k) for n in (1.0, 2.0) for k in (1.0, 3.0)}
    found = take_turns(works, baseline={(n, k): (n, 1.0) for n, k in works}, rounds=6, narrow=0.0, warmup=1)
    assert found[2.0, 1.0].ratio is None
    # the clock drifts by 10 % every three calls, so that two calls of one round differ by at most 20 %
    assert found[1.0, 3.0].ratio.median == pytest.approx(3.0, rel=0.2)
    assert found[2.0, 3.0].ratio.median == pytest.approx(3.0, rel=0.2)


def test_no_samples_is_an_error():
    with pytest.raises(RequestError):
        interval_of_median([])


class Clock:
    """A clock that only contestants move, at a pace that drifts from round to round."""

    def __init__(self, monkeypatch):
        self.now, self.calls = 0.0, []
        monkeypatch.setattr(latency.time, "perf_counter", lambda: self.now)

    def work(self, name, seconds, fails_after=None):
        def run():
            self.calls.append(name)
            if fails_after is not None and self.calls.count(name) > fails_after:
                raise ValueError("broke")
            self.now += seconds * (1 + 0.1 * ((len(self.calls) - 1) // 3))  # three contestants a round

        return run


def test_ratios_are_paired_in_a_round_so_that_drift_cancels(monkeypatch):
    clock = Clock(monkeypatch)
    works = {"a": clock.work("a", 1.0), "b": clock.work("b", 2.0), "c": clock.work("c", 0.5)}
    found = take_turns(works, baseline="a", rounds=12, seconds=1e9, warmup=1, narrow=0.0)
    assert len(found["b"].samples) == 12
    assert max(found["b"].samples) > 1.5 * min(found["b"].samples)  # the machine did drift
    assert found["b"].ratio.median == pytest.approx(2.0)
    assert found["b"].ratio.width < 0.01
    assert found["c"].to_dict()["ratio"]["to"] == "a"
    assert found["a"].to_dict()["ratio"] is None
    rounds = [clock.calls[n : n + 3] for n in range(3, len(clock.calls), 3)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert len({tuple(r) for r in rounds}) > 1  # the order changes


def test_rounds_end_when_every_ratio_is_narrow_or_time_is_up_but_not_before_six(monkeypatch):
    clock = Clock(monkeypatch)
    found = take_turns(
        {"a": clock.work("a", 1.0), "b": clock.work("b", 3.0)}, baseline="a", rounds=50, seconds=1e9, narrow=0.5
    )
    assert len(found["a"].samples) == latency.FEWEST_ROUNDS
    found = take_turns(
        {"a": clock.work("a", 1.0), "b": clock.work("b", 3.0)}, baseline="a", rounds=50, seconds=0.0, narrow=0.0
    )
    assert len(found["a"].samples) == latency.FEWEST_ROUNDS
    found = take_turns({"a": clock.work("a", 1.0)}, rounds=3)
    assert len(found["a"].samples) == 3


def test_one_that_breaks_keeps_its_row_and_the_others_go_on(monkeypatch):
    clock = Clock(monkeypatch)

    def refuse():
        raise Refused("no", ["reason one", "reason two"])

    def starve():
        raise torch.OutOfMemoryError("CUDA out of memory")

    works = {"a": clock.work("a", 1.0), "b": clock.work("b", 1.0, fails_after=4), "r": refuse, "o": starve}
    found = take_turns(works, baseline="a", rounds=8, narrow=0.0)
    assert len(found["a"].samples) == 8
    assert (found["b"].status, found["b"].reasons) == ("failed", ["ValueError: broke"])
    assert found["b"].to_dict()["median"] is None
    assert (found["r"].status, found["r"].reasons) == ("refused", ["reason one", "reason two"])
    assert found["o"].status == "oom"
    without = take_turns({"a": clock.work("a", 1.0), "r": refuse}, baseline="r", rounds=6)
    assert without["a"].ratio is None
    assert without["a"].interval is not None


def test_preparation_is_not_timed_and_units_divide(monkeypatch):
    clock = Clock(monkeypatch)
    contestant = Contestant(clock.work("a", 1.0), prepare=clock.work("p", 50.0), units=4)
    found = take_turns({"a": contestant}, rounds=6, narrow=0.0)
    assert all(250 <= ms <= 250 * 2 for ms in found["a"].samples)  # a second (with its drift) over four units
    assert clock.calls.count("p") == clock.calls.count("a") == 8


def test_a_short_contestant_is_called_several_times_a_sample():
    calls = []
    found = take_turns({"a": lambda: calls.append(time.perf_counter())}, rounds=6, warmup=2, narrow=0.0)
    assert len(calls) > 2 + 6
    assert found["a"].first_ms is not None
