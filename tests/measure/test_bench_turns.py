"""What a benchmark tells the turns, and what it makes of them."""

from types import SimpleNamespace

import pytest
import torch

from attnzoo.measure import bench_operator, bench_turns, fresh
from attnzoo.measure.bench import bench
from attnzoo.measure.bench_row import Key, Work
from attnzoo.measure.latency import Contestant, Timing
from attnzoo.measure.limit import Limit

SMALL = {"n_heads": 2, "head_dim": 16, "verify": lambda *_: ("ok", [])}


@pytest.fixture
def told(monkeypatch):
    """What the turns were told; each contestant took a millisecond."""
    told = {}

    def turns(works, **how):
        told.update(how)
        for work in works.values():
            work.run()
        return {key: Timing(samples=[1.0] * 6) for key in works}

    monkeypatch.setattr(bench_turns, "take_turns", turns)
    return told


def test_all_lengths_take_turns_each_beside_its_own_baseline(told):
    names, lengths = ["linear", "sdpa"], [32, 16]
    rows = bench(
        names, ops=["forward"], lengths=lengths, rounds=7, seconds=3.0, seed=5, limit=99.0, dense_masks=False, **SMALL
    )["rows"]
    assert (told["rounds"], told["seconds"], told["seed"]) == (7, 2 * 3.0, 5)
    assert 0 < told["limit"].seconds < 99
    assert told["baseline"] == {Key(name, n): Key("sdpa", n) for name in names for n in lengths}
    assert [(row["backend"], row["T"]) for row in rows] == [(name, n) for n in (16, 32) for name in names]


def test_only_what_ran_is_measured_in_a_process_of_its_own(told, monkeypatch):
    asked = []

    def peak(level, name, op, setting, n_tokens, timeout):
        asked.append(name)
        return {"bytes": 5, "method": "m", "process_bytes": 6, "process_method": "p", "reasons": []}

    monkeypatch.setattr(fresh, "fresh_peak", peak)
    how = {"ops": ["forward+backward"], "lengths": [32], "fresh_memory": True}  # flex has no backward here
    rows = bench(["sdpa", "sliding_window", "flex"], **how, **SMALL)["rows"]
    assert asked == ["sdpa", "sliding_window"]
    assert [row["peak_memory_bytes"] == 5 for row in rows] == [row["backend"] in asked for row in rows]
    assert len(rows) == 4  # one is sdpa with the window's mask


def test_graphs_have_room_and_the_room_is_given_back():
    before = torch._dynamo.config.recompile_limit
    with bench_turns._room_for_graphs(before):
        assert torch._dynamo.config.recompile_limit == 2 * before
    with bench_turns._room_for_graphs(1):
        assert torch._dynamo.config.recompile_limit == before
    with pytest.raises(ValueError, match="broke"), bench_turns._room_for_graphs(before):
        raise ValueError("broke")
    assert torch._dynamo.config.recompile_limit == before


def test_inputs_are_drawn_once_a_shape_and_freed_afterwards(monkeypatch):
    drawn = []
    randn = torch.randn

    def counted(*shape, **how):
        drawn.append(shape[0] if isinstance(shape[0], tuple) else shape)
        return randn(*shape, **how)

    monkeypatch.setattr(torch, "randn", counted)
    bench(
        ["sdpa", "exact"], ops=["forward"], lengths=(8, 16), n_heads=2, head_dim=4, rounds=1, seconds=0.1,
        dense_masks=False, verify=lambda *_: ("ok", []),
    )  # fmt: skip
    ours = [shape for shape in drawn if len(shape) == 4]
    assert sorted(ours) == [(1, 2, 8, 4)] * 4 + [(1, 2, 16, 4)] * 4
    assert bench_operator._drawn.cache_info().currsize == 0


def test_memory_is_weighed_from_the_starting_point_of_a_call():
    order, settings = (
        [],
        {"level": "model", "verdicts": {}, "lengths": [4], "rounds": 1, "seconds": 1.0, "baseline": "sdpa"},
    )
    turns = bench_turns.Turns(
        setting=SimpleNamespace(device="cpu"), dense_masks=False, compiled=False, fresh_memory=True, **settings
    )
    work = Work(Contestant(lambda: order.append("run"), prepare=lambda: order.append("ready")), 1)
    for key in (Key("sdpa", 4, True), Key("nobody", 4)):  # neither can be made in another process
        assert turns._weigh(key, "decode", work, Limit.of(None)).keys() == {"peak_memory_bytes"}
    assert order == ["ready", "run"] * 2
    over = Limit(5.0, end=0.0)
    assert turns._weigh(Key("sdpa", 4), "decode", work, over) == {
        "reasons": [over.over_before("its memory was measured")]
    }


def test_the_memory_columns_of_a_process_of_its_own(monkeypatch):
    asked = []
    found = {"bytes": 5, "method": "m", "process_bytes": 6, "process_method": "p", "reasons": ["r"]}
    monkeypatch.setattr(fresh, "fresh_peak", lambda *given, timeout: asked.append((*given, timeout)) or found)
    shown = {
        "peak_memory_bytes": 5,
        "memory_method": "m",
        "process_peak_bytes": 6,
        "process_method": "p",
        "reasons": ["r"],
    }
    assert bench_turns._fresh("model", Key("sdpa", 4), "decode", "setting", Limit.of(None)) == shown
    bench_turns._fresh("model", Key("sdpa", 4), "decode", "setting", Limit.of(50.0))
    assert asked[0] == ("model", "sdpa", "decode", "setting", 4, fresh.LONGEST)
    assert 0 < asked[1][-1] <= 50


def test_a_longer_one_of_the_same_kind_is_no_easier():
    keys = [Key("a", 1), Key("a", 1, True), Key("b", 1), Key("a", 2), Key("a", 2, True), Key("a", 4)]
    assert bench_turns._shorter(keys) == {
        Key("a", 2): Key("a", 1), Key("a", 2, True): Key("a", 1, True), Key("a", 4): Key("a", 2),
    }  # fmt: skip


def test_lengths_are_built_from_the_shortest_on(told):
    bench(["sdpa"], ops=["forward"], lengths=[32, 8, 16], dense_masks=False, **SMALL)
    assert told["easier"] == {Key("sdpa", 16): Key("sdpa", 8), Key("sdpa", 32): Key("sdpa", 16)}
    assert (told["device"], told["leave"]) == ("cpu", bench_turns.WEIGHING)
