import itertools
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnzoo.errors import Refused, RequestError
from attnzoo.measure import latency
from attnzoo.measure.latency import Contestant, interval_of_median, take_turns
from attnzoo.measure.limit import Limit


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

    def spend(self, name, seconds):
        self.calls.append(name)
        self.now += seconds

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


class Steps:
    """A clock that contestants move by as much as is written down, the last entry for ever."""

    def __init__(self, monkeypatch):
        self.now, self.calls = 0.0, []
        monkeypatch.setattr(latency.time, "perf_counter", lambda: self.now)

    def work(self, name, *seconds):
        def run():
            took = seconds[min(self.calls.count(name), len(seconds) - 1)]
            self.calls.append(name)
            if took is None:
                raise ValueError("broke")
            self.now += took

        return run

    def take(self, rounds=6, narrow=-1.0, seconds=1e9, **how):
        """Turns that no interval ends."""
        return take_turns(how.pop("works"), rounds=rounds, narrow=narrow, seconds=seconds, **how)


@pytest.fixture
def steps(monkeypatch):
    return Steps(monkeypatch)


def test_the_first_call_is_kept_apart_and_the_whole_of_it(steps):
    found = steps.take(works={"a": Contestant(steps.work("a", 5.0, 1.0), units=4)}, warmup=3)
    assert found["a"].first_ms == 5000
    assert found["a"].samples == [250.0] * 6
    steps.take(works={"b": steps.work("b", 1.0)}, warmup=0)
    assert steps.calls.count("b") == 1 + 6  # what was never called is never timed


def test_how_many_calls_make_a_sample(steps):
    short = 2.0**-11  # a fifth of the shortest sample, nearly: a time of a call, whatever a call does
    assert 4 * short < latency.SHORTEST_SAMPLE < 5 * short
    found = steps.take(works={"a": Contestant(steps.work("a", short), units=4)}, warmup=1)
    assert found["a"].samples == [1000 * short / 4] * 6
    assert steps.calls.count("a") == 1 + 6 * 5
    calls = []
    steps.take(works={"b": lambda: calls.append(1)}, warmup=1)
    assert len(calls) == 1 + 6 * 100  # in no time at all
    prepared = Contestant(steps.work("c", short), prepare=steps.work("p", 0.0))
    steps.take(works={"c": prepared}, warmup=1)
    assert steps.calls.count("c") == steps.calls.count("p") == 1 + 6  # a call starts where the preparation left it


def test_a_time_limit_ends_rounds_and_who_takes_too_much_of_it(steps):
    works = {"a": steps.work("a", 1.0), "long": steps.work("long", 3.0), "late": steps.work("late", 1.0)}
    found = steps.take(works=works, rounds=100, warmup=1, limit=Limit.of(20.0))
    assert (found["long"].status, steps.calls.count("long")) == ("interrupted", 1)
    assert "one call takes 3 s" in found["long"].reasons[0]
    assert {len(found["a"].samples), len(found["late"].samples)} == {
        7,
        8,
    }  # rounds of 2 s, after 5 s: one alone fits the last
    assert steps.now == 20
    steps.now = 0.0
    works = {"a": steps.work("b", 21.0, 1.0), "late": steps.work("never", 1.0)}
    found = steps.take(works=works, warmup=2, limit=Limit.of(20.0))
    assert (found["late"].status, steps.calls.count("never")) == ("interrupted", 0)
    assert "before its turn" in found["late"].reasons[0]


def test_rounds_go_on_until_the_widest_is_narrow_and_their_time_is_their_own(steps):
    works = {"a": steps.work("a", 1.0), "even": steps.work("b", 2.0), "odd": steps.work("c", *[1.0, 3.0] * 20)}
    assert len(steps.take(works=works, baseline="a", rounds=20, narrow=0.05)["a"].samples) == 20
    found = steps.take(works={"d": steps.work("d", 100.0, 1.0)}, rounds=50, warmup=1, seconds=10.0)
    assert len(found["d"].samples) == 11  # the warm-up's 100 s are not theirs


def test_a_drifting_machine_does_not_widen_ratios(steps):
    drift = [2.0**n for n in range(20)]
    works = {"a": steps.work("a", *drift), "b": steps.work("b", *(3 * step for step in drift))}
    assert len(steps.take(works=works, baseline="a", rounds=19, narrow=0.05, warmup=1)["a"].samples) == 6


def test_outliers_are_kept(steps):
    timing = steps.take(works={"a": steps.work("a", 1.0, 1.0, 1.0, 100.0, 1.0)}, warmup=1)["a"]
    assert (timing.interval.median, timing.interval.high) == (1000.0, 100_000.0)


def test_who_fails_has_no_more_turns_and_is_no_baseline(steps):
    works = {"a": steps.work("a", 1.0), "b": steps.work("b", 1.0, 1.0, 1.0, None), "c": steps.work("c", None)}
    found = steps.take(works=works, baseline="b", warmup=3)
    assert (steps.calls.count("a"), steps.calls.count("b"), steps.calls.count("c")) == (9, 4, 1)
    works = {"a": steps.work("d", 1.0), "b": steps.work("e", 1.0, 1.0, 1.0, None)}
    found = steps.take(works=works, baseline="b", warmup=1)
    assert (len(found["b"].samples), found["a"].ratio) == (2, None)


def test_the_seed_decides_the_order(steps):
    def order(seed):
        steps.calls.clear()
        steps.take(works={name: steps.work(name, 1.0) for name in "abc"}, seed=seed)
        return tuple(steps.calls)

    assert order(3) == order(3)
    assert len({order(seed) for seed in range(4)}) > 1


def test_a_sample_is_what_the_device_did_for_it(steps, monkeypatch):
    pending = [0.0]

    def asked(seconds):
        return lambda: pending.__setitem__(0, pending[0] + seconds)

    def synchronize(device):
        steps.now, pending[0] = steps.now + pending[0], 0.0

    monkeypatch.setattr(latency, "synchronize", synchronize)
    found = steps.take(works={"a": Contestant(asked(2.0), prepare=asked(50.0))})
    assert found["a"].samples == [2000.0] * 6


def test_a_median_that_is_not_above_zero_has_no_relative_width():
    assert interval_of_median([-2.0, -1.0, -3.0]).width == interval_of_median([0.0] * 3).width == float("inf")


def test_a_limit_holds_within_a_round_and_who_was_warmed_up_is_timed(monkeypatch):
    clock = Clock(monkeypatch)
    works = {n: (lambda n=n: clock.spend(n, 4.0)) for n in range(20)}
    found = take_turns(works, limit=Limit.of(100.0), baseline=0, narrow=0.0)
    assert clock.now <= 100
    timed = [n for n, timing in found.items() if timing.status == "ok"]
    assert all(found[n].samples for n in timed)
    assert timed == list(range(6))  # two calls of 4 s each in the first 50 s; the other half times them
    late = [timing for timing in found.values() if timing.status != "ok"]
    assert {timing.status for timing in late} == {"interrupted"}
    assert all("time limit" in timing.reasons[0] for timing in late)
    before = clock.now
    take_turns({n: (lambda n=n: clock.spend(n, 4.0)) for n in range(3)}, limit=Limit.of(100.0), narrow=0.0, leave=2.0)
    assert clock.now - before <= 100 - 2 * 3 * 4.0


def test_one_that_is_too_slow_is_not_called_where_it_takes_longer(monkeypatch):
    clock = Clock(monkeypatch)
    works = {n: lambda n=n: clock.spend(n, n) for n in (1.0, 12.0, 1000.0)}
    found = take_turns(works, limit=Limit.of(100.0), easier={12.0: 1.0, 1000.0: 12.0})
    assert {n: timing.status for n, timing in found.items()} == {1.0: "ok", 12.0: "interrupted", 1000.0: "interrupted"}
    assert "one call takes 12 s" in found[12.0].reasons[0]
    assert 1000.0 not in clock.calls
    assert "fewer tokens" in found[1000.0].reasons[0]


def test_the_form_of_the_record():
    timing = latency.Timing(samples=[1.0, 2.0, 3.0], first_ms=9.0, to="a", ratios=[0.5, 1.0, 1.5])
    shown = {"median": 2.0, "low": 1.0, "high": 3.0, "rounds": 3, "first": 9.0}
    assert timing.to_dict() == shown | {"ratio": {"to": "a", "median": 1.0, "low": 0.5, "high": 1.5}}
    timing.ratios = []
    assert timing.to_dict() == shown | {"ratio": None}
    timing.status, timing.reasons = "failed", ["so"]
    nothing = dict.fromkeys(("median", "low", "high"))
    assert timing.to_dict() == shown | nothing | {"ratio": None, "status": "failed", "reasons": ["so"]}


def test_a_device_is_waited_for_where_it_is_one(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    for device in ("cpu", "cuda:1"):
        latency.synchronize(device)
    assert waited == ["cuda:1"]
