import pytest

from attnzoo.errors import RequestError
from attnzoo.measure.trend import growth, regressions, slope


def row(backend="linear", n_tokens=1024, ms=1.0, ratio=None, peak=None, status="ok", spread=0.01):
    timing = {"median": ms, "low": ms * (1 - spread), "high": ms * (1 + spread), "rounds": 9, "ratio": None}
    drift = [
        0.5,
        1.0,
        4.0,
        1.0,
        1.0,
        2.0,
        1.0,
        3.0,
        1.0,
    ]  # of the machine from round to round, the same for all lengths
    timing["samples"] = [
        ms * pace * (1 + spread * ((n_tokens // 1024 * 7 + k) % 5 - 2) / 2) for k, pace in enumerate(drift)
    ]
    if ratio is not None:
        timing["ratio"] = {"to": "sdpa", "median": ratio, "low": ratio * 0.99, "high": ratio * 1.01}
    return {
        "backend": backend, "level": "operator", "op": "forward", "T": n_tokens, "B": 1, "H": 4, "G": 4, "D": 64,
        "dtype": "float32", "timing": timing, "peak_memory_bytes": peak, "status": status,
    }  # fmt: skip


def test_a_planted_exponent_is_found_and_judged():
    rows = [row(n_tokens=n, ms=1e-3 * n**1.5, peak=n) for n in (16, 1024, 2048, 4096)]
    rows += [row("refused", n, status="refused") for n in (1024, 2048)]
    time, memory = growth(rows, {("linear", "forward", "time"): 1.0, ("linear", "forward", "memory"): 1.0})
    assert time["exponent"] == pytest.approx(1.5, abs=0.02)  # two ends, each 1 % off, over a factor of 4
    assert time["low"] <= 1.5 <= time["high"]
    assert time["high"] - time["low"] < 0.1  # the drift has cancelled
    assert time["lengths"] == [1024, 2048, 4096]  # the longest three
    assert time["verdict"] == "grows faster than declared"
    assert memory["exponent"] == pytest.approx(1.0)
    assert memory["verdict"] == "as declared"


def test_short_lengths_and_wide_intervals_accuse_nobody():
    declared = {("linear", "forward", "time"): 1.0}
    short = growth([row(n_tokens=n, ms=n**2) for n in (64, 128)], declared)
    assert short[0]["verdict"] is None
    wide = growth([row(n_tokens=n, ms=n**1.5, spread=0.9) for n in (1024, 2048)], declared)
    assert wide[0]["verdict"] == "as declared"


def test_shapes_and_types_grow_apart_and_lengths_come_in_any_order():
    lengths = (4096, 2048, 1024, 512)
    rows = [row(n_tokens=n, ms=1e-3 * n**power, spread=0.0) | {"dtype": dtype, "G": g}
            for n in lengths for dtype, g, power in (("float32", 4, 1), ("float32", 1, 2), ("bfloat16", 4, 3))]  # fmt: skip
    found = {(fit["dtype"], fit["G"]): fit for fit in growth(rows, {})}
    assert [round(found[key]["exponent"], 6) for key in (("float32", 4), ("float32", 1), ("bfloat16", 4))] == [1, 2, 3]
    assert {tuple(fit["lengths"]) for fit in found.values()} == {(1024, 2048, 4096)}


def test_what_says_nothing_of_growth_is_left_out():
    assert growth([row(n_tokens=1024), row(n_tokens=1024)], {}) == []
    (time,) = growth([row(n_tokens=1024, peak=100), row(n_tokens=2048)], {})
    assert time["quantity"] == "time"


def test_the_claim_of_the_work_itself_counts():
    rows = [row(n_tokens=n, ms=n**2, spread=0.0) | {"op": "decode"} for n in (1024, 2048)]
    (fit,) = growth(rows, {("linear", "forward", "time"): 1.0, ("linear", "decode", "time"): 2.0})
    assert (fit["declared"], fit["verdict"]) == (2.0, "as declared")


def test_slope_of_two_points_is_the_log_ratio():
    assert slope([1, 2], [1, 8]) == pytest.approx(3.0)


def test_what_became_slower_larger_or_broke():
    old = {"rows": [row(ms=1.0, ratio=0.5, peak=100), row("exact", ms=1.0), row("gqa", ms=1.0)]}
    slower_machine = {"rows": [row(ms=3.0, ratio=0.5, peak=100), row("exact", ms=1.01), row("gqa", ms=1.0)]}
    assert regressions(slower_machine, old) == []
    worse = {"rows": [row(ms=1.0, ratio=0.7, peak=120), row("exact", ms=2.0), row("gqa", status="incorrect")]}
    found = regressions(worse, old)
    assert [(f["backend"], f["what"]) for f in found] == [
        ("linear", "time"),
        ("linear", "memory"),
        ("exact", "time"),
        ("gqa", "status"),
    ]
    key = {"level": "operator", "op": "forward", "T": 1024, "B": 1, "H": 4, "G": 4, "D": 64, "dtype": "float32"}
    assert found == [
        {"backend": "linear", **key, "what": "time", "by": "ratio to sdpa", "before": 0.5, "after": 0.7},
        {"backend": "linear", **key, "what": "memory", "by": "bytes", "before": 100, "after": 120},
        {"backend": "exact", **key, "what": "time", "by": "ms", "before": 1.0, "after": 2.0},
        {"backend": "gqa", **key, "what": "status", "by": None, "before": "ok", "after": "incorrect"},
    ]
    noisy = {"rows": [row("exact", ms=1.2, spread=0.5)]}
    assert regressions(noisy, old) == []  # the intervals meet


def test_what_is_no_loss_is_not_reported():
    past = row(ms=1.0, ratio=0.5, peak=100, spread=0.001)
    small = row(ms=1.04, ratio=0.52, peak=104, spread=0.001)  # the intervals do not meet, but 4 % is noise
    again = row("gqa", ms=1.0, spread=0.001)
    assert regressions({"rows": [small, again]}, {"rows": [past, again | {"status": "failed"}]}) == []
    small["timing"]["ratio"] = past["timing"]["ratio"] = None
    assert regressions({"rows": [small]}, {"rows": [past]}) == []


def test_ratios_to_different_baselines_are_not_compared():
    past, now = row(ms=1.0, ratio=0.5), row(ms=1.0, ratio=2.0)
    now["timing"]["ratio"]["to"] = "exact"
    assert regressions({"rows": [now]}, {"rows": [past]}) == []
    now = row(ms=2.0, ratio=0.5)
    now["timing"]["ratio"]["to"] = "exact"
    assert regressions({"rows": [now]}, {"rows": [past]})[0]["by"] == "ms"


@pytest.mark.parametrize(("low", "lost"), [(1.25, []), (1.26, ["time"])])
def test_intervals_that_touch_tell_nothing_apart(low, lost):
    past, now = row(ms=1.0), row(ms=1.5)
    past["timing"] |= {"low": 0.75, "high": 1.25}
    now["timing"] |= {"low": low, "high": 1.75}
    assert [f["what"] for f in regressions({"rows": [now]}, {"rows": [past]})] == lost
    gone, there = bar(1.5), bar(2.0)  # of a race more is better
    gone["ratio"] |= {"low": 1.25, "high": 3.25 - low}
    there["ratio"] |= {"low": 2.0, "high": 2.5}
    assert [f["what"] for f in regressions({"bars": [gone]}, {"bars": [there]})] == lost


def test_a_ratio_that_only_one_has_leaves_the_times():
    for now, past in ((row(ms=2.0, ratio=9.0), row(ms=1.0)), (row(ms=2.0), row(ms=1.0, ratio=0.1))):
        [found] = regressions({"rows": [now]}, {"rows": [past]})
        assert (found["by"], found["before"], found["after"]) == ("ms", 1.0, 2.0)


def test_the_whole_of_a_fit():
    rows = [row(n_tokens=n, ms=n**2, spread=0.0, peak=None) | {"n_kv_heads": 2} for n in (1024, 2048)]
    [fit] = growth(rows, {("linear", "forward", "time"): 1.5})
    numbers = {key: round(fit.pop(key), 9) for key in ("exponent", "low", "high")}
    assert numbers == {"exponent": 2.0, "low": 2.0, "high": 2.0}
    assert fit == {
        "backend": "linear", "level": "operator", "op": "forward", "B": 1, "H": 4, "G": 4, "D": 64, "dtype": "float32",
        "n_kv_heads": 2, "quantity": "time", "declared": 1.5, "lengths": [1024, 2048], "verdict": "grows faster than declared",
    }  # fmt: skip
    at = [row(n_tokens=n, ms=n**1.75, spread=0.0) for n in (1024, 2048)]  # its slack is 0.2, and it takes two lengths
    for claim, verdict in ((1.56, "as declared"), (1.54, "grows faster than declared")):
        assert growth(at, {("linear", "forward", "time"): claim})[0]["verdict"] == verdict
    short = [row(n_tokens=n, ms=n**2, spread=0.0) for n in (1024, 2047)]
    assert growth(short, {("linear", "forward", "time"): 1.0})[0]["verdict"] is None


def test_nothing_in_common_is_an_error():
    with pytest.raises(RequestError, match="no row in common"):
        regressions({"rows": [row(n_tokens=7)]}, {"rows": [row()]})


def test_what_keeps_two_benchmarks_apart_is_said():
    with pytest.raises(RequestError) as error:
        regressions({"rows": [row(n_tokens=7), row("gqa", n_tokens=8)]}, {"rows": [row()]})
    assert error.value.reasons == ["T: here 7, 8, there 1024"]
    with pytest.raises(RequestError) as error:  # each column agrees somewhere
        regressions({"rows": [row(n_tokens=7), row("gqa")]}, {"rows": [row()]})
    assert "no row agrees in all" in error.value.reasons[0]


def bar(median=2.0, spread=0.01, quantity="time", peer="sdpa", **own):
    ratio = {"median": median, "low": median * (1 - spread), "high": median * (1 + spread)}
    return {
        "work": "a step", "quantity": quantity, "ours": {"name": "linear"}, "peer": {"name": peer},
        "peers": ["sdpa", "exact"], "ratio": ratio, "verdict": "met", **own,
    }  # fmt: skip


def test_a_line_that_is_fewer_times_as_fast_is_lost():
    (lost,) = regressions({"bars": [bar(1.5, peer="exact")]}, {"bars": [bar(2.0)]})
    assert lost == {
        "backend": "linear", "op": "a step", "T": None, "what": "time", "by": "times as fast as exact",
        "before": 2.0, "after": 1.5,
    }  # fmt: skip
    (lost,) = regressions({"bars": [bar(1.5, quantity="state_bytes")]}, {"bars": [bar(2.0, quantity="state_bytes")]})
    assert lost["what"] == "memory"


@pytest.mark.parametrize(
    "now",
    [
        bar(2.5),  # faster
        bar(2.0),
        bar(1.95, spread=0.001),  # apart, but 2.5 % is noise
        bar(1.5, spread=0.5),  # the intervals meet
        bar(1.98 / 1.01, spread=0.01),  # they touch
    ],
)
def test_a_line_that_holds_is_not(now):
    assert regressions({"bars": [now]}, {"bars": [bar(2.0)]}) == []


def test_a_line_that_is_not_measured_any_more_is_said():
    (lost,) = regressions({"bars": [bar(ratio=None, verdict="not measured")]}, {"bars": [bar()]})
    assert (lost["what"], lost["before"], lost["after"]) == ("status", "ok", "not measured")
    with pytest.raises(RequestError, match="no line in common"):  # there was nothing to lose
        regressions({"bars": [bar()]}, {"bars": [bar(ratio=None)]})


def test_lines_are_matched_by_work_ours_quantity_and_peers():
    for other in ({"work": "another"}, {"quantity": "state_bytes"}, {"ours": {"name": "gla"}}, {"peers": ["sdpa"]}):
        with pytest.raises(RequestError, match="no line in common"):
            regressions({"bars": [bar() | other]}, {"bars": [bar()]})


def test_a_loss_of_just_the_noise_is_none():
    past, now = row(ms=1.0, spread=0.0), row(ms=1.05, spread=0.0)
    assert regressions({"rows": [now]}, {"rows": [past]}) == []
    assert regressions({"rows": [row(peak=105)]}, {"rows": [row(peak=100)]}) == []
    assert regressions({"rows": [row(peak=106)]}, {"rows": [row(peak=100)]})[0]["what"] == "memory"
