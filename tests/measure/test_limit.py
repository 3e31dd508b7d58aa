"""A time limit and its shares, on a clock that stands still unless it is moved."""

from __future__ import annotations

import math

import pytest

from attnzoo.measure import limit
from attnzoo.measure.limit import Limit


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(limit.time, "perf_counter", lambda: now[0])
    return now


def test_of_everything_one_of_its_parts_and_what_is_left(clock):
    whole = Limit.of(60.0)
    assert (whole.asked, whole.start, whole.end, whole.parts) == (60.0, 100.0, 160.0, 1)
    clock[0] = 110.0
    assert (whole.left, whole.seconds) == (50.0, 60.0)
    half = whole.share(2)
    assert (half.asked, half.start, half.end, half.left, half.seconds) == (60.0, 110.0, 135.0, 25.0, 25.0)
    assert whole.share().end == 160.0  # one part of one
    four = whole.among(4)
    assert (four.asked, four.end, four.start, four.left) == (60.0, 160.0, 100.0, 50.0)
    assert four.share().seconds == 12.5
    assert four.share(2).seconds == 25.0
    clock[0] = 170.0
    assert (whole.left, whole.share(2).left) == (0.0, 0.0)


def test_no_limit_is_never_over(clock):
    none = Limit.of(None)
    assert (none.asked, none.left, none.share(3).left) == (math.inf,) * 3


def test_what_was_over_says_of_how_much(clock):
    whole = Limit.of(60.0)
    clock[0] = 130.0
    assert whole.over_before("it was built") == "the time limit of 60 s was over before it was built"
    share = "its share of the time limit, 15 of 60 s, was over before its turn"
    assert whole.share(2).over_before("its turn") == share
    assert Limit.of(1.5).share(3).over_before("x") == "its share of the time limit, 0.5 of 1.5 s, was over before x"
    clock[0] = 200.0  # nothing is left to have a share of
    assert whole.share(2).over_before("x") == "the time limit of 60 s was over before x"
