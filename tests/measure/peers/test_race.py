"""Lines of a race by hand: contestants that move a clock by as much as is written down."""

import pytest
import torch

from attnzoo.measure import latency
from attnzoo.measure.latency import Contestant
from attnzoo.measure.peers.race import Bar, Differs, Entry, Race, expect_same, run

SHAPE = {"T": 1, "B": 1, "H": 1, "G": 1, "D": 1, "dtype": "float32"}
DRIFT = [1, 2, 4, 8, 16, 32]


@pytest.fixture
def race(monkeypatch):
    """(bar, seed, name = the seconds of its calls, None where it fails) -> rows by name, the line and who was called."""
    now, calls = [0.0], []
    monkeypatch.setattr(latency.time, "perf_counter", lambda: now[0])

    def contestant(name, seconds):
        left = iter([1, *seconds])  # the first is to warm up

        def call():
            calls.append(name)
            if (took := next(left)) is None:
                raise ValueError("broke")
            now[0] += took

        return lambda: Entry(Contestant(call), lambda: "a kernel", state_bytes=8)

    def ran(bar, seed=0, **seconds):
        calls.clear()
        entries = {name: contestant(name, each) for name, each in seconds.items()}
        rows, (line,) = run(Race("work", SHAPE, (), entries, [bar], rounds=6), seconds=1e9, seed=seed)
        return {row["backend"]: row for row in rows}, line, list(calls)

    return ran


def times(factor):
    return [factor * step for step in DRIFT]


def test_ratios_are_of_one_round_and_go_to_ours(race):
    rows, line, _ = race(
        Bar("w", "ours", ("theirs",), 2.0, limit="limit"), ours=DRIFT, theirs=times(2), limit=times(0.5)
    )
    assert line["ratio"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert line["at_most"] == {"median": 4.0, "low": 4.0, "high": 4.0}
    assert (line["verdict"], line["rounds"]) == ("met", 6)  # a bar that is just reached is met
    assert {name: row["timing"]["ratio"] and row["timing"]["ratio"]["to"] for name, row in rows.items()} == {
        "ours": None, "theirs": "ours", "limit": "ours",
    }  # fmt: skip


def test_the_fastest_is_so_by_its_median(race):
    _, line, _ = race(Bar("w", "ours", ("a", "b")), ours=[4] * 6, a=[1, 9, 9, 9, 9, 9], b=[8] * 6)
    assert (line["peer"]["name"], line["ratio"]["median"]) == ("b", 2.0)


@pytest.mark.parametrize("fails", ["ours", "theirs"])
def test_who_fails_half_way_is_not_compared(race, fails):
    seconds = {"ours": [1] * 6, "theirs": [2] * 6}
    seconds[fails][3] = None
    rows, line, _ = race(Bar("w", "ours", ("theirs",), 1.0), **seconds)
    assert (line["verdict"], line["ratio"], line["reasons"]) == ("not measured", None, [f"{fails}: ValueError: broke"])
    row = rows[fails]
    assert (row["status"], row["timing"], row["kernel"]) == ("failed", None, None)
    assert [row["state_bytes"] for row in rows.values()] == [8, 8]


def test_one_that_fails_leaves_the_line_to_the_others(race):
    _, line, _ = race(Bar("w", "ours", ("a", "b")), ours=[4] * 6, a=[1, 1, None], b=[8] * 6)
    assert (line["peer"]["name"], line["reasons"]) == ("b", ["a: ValueError: broke"])


def test_what_cannot_be_answered_here_says_why(race):
    _, line, _ = race(Bar("w", "ours", ("theirs",), 1.0, unreachable="no such units"), ours=[1] * 6, theirs=[2] * 6)
    assert (line["verdict"], line["reasons"], line["ratio"]["median"]) == ("not reachable here", ["no such units"], 2.0)


def test_the_seed_orders_the_turns(race):
    def order(seed):
        return race(Bar("w", "ours", ("a", "b")), seed, ours=[1] * 6, a=[1] * 6, b=[1] * 6)[2]

    assert order(0) == order(0)
    assert len({tuple(order(seed)) for seed in range(4)}) > 1


def test_numbers_that_are_none_differ_from_all():
    for theirs, ours in ((float("nan"), 1.0), (float("inf"), 1.0)):
        with pytest.raises(Differs):
            expect_same(torch.full((2, 3), theirs), torch.full((2, 3), ours), "x")
