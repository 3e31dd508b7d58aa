"""What limits do is what the model does, counted; the line that holds one, and what it says."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from attnzoo.measure.bench_model import decode_flops
from attnzoo.measure.cost import train_step_flops
from attnzoo.measure.interval import Interval
from attnzoo.measure.latency import Contestant
from attnzoo.measure.peers import bench_peers, limits
from attnzoo.measure.peers.decoding import filled_cache
from attnzoo.measure.peers.race import Bar, Entry, Race, run, verdict
from attnzoo.measure.peers.sizes import QUICK
from attnzoo.measure.peers.training import model
from attnzoo.measure.step import TrainStep, random_tokens
from attnzoo.model import compiled


class Calls(TorchDispatchMode):
    """Operations called, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def counted(work) -> float:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def calls_of(work) -> Counter[str]:
    with Calls() as calls:
        work()
    return calls.count


@pytest.mark.parametrize("kv_heads", [8, 2])
def test_a_training_step_multiplies_as_much_as_the_model(kv_heads):
    ours = model(replace(QUICK.decoder, n_kv_heads=kv_heads, qk_norm=False), 0)
    batch, n_tokens = 2, 24
    limit = limits.train_products(ours, batch, n_tokens).contestant
    attention = 3 * batch * sum(a.flops(n_tokens, n_tokens) for a in ours.attention_modules())
    # the counter does not see the flash kernel of a CPU
    assert counted(limit.run) == train_step_flops(ours, batch, n_tokens) - attention
    mine, theirs = calls_of(limit.run), calls_of(TrainStep(ours, batch, n_tokens))
    flash = [name for name in theirs if "flash" in name]
    assert len(flash) == 2, flash
    assert {name: mine[name] for name in flash} == {name: theirs[name] for name in flash} == dict.fromkeys(flash, 2)
    assert not [name for name in mine if "norm" in name or "silu" in name or "adam" in name or "loss" in name]


@pytest.mark.parametrize(("kv_heads", "batch"), [(8, 1), (8, 3), (2, 1), (2, 3)])
def test_a_decoded_token_multiplies_as_much_as_the_model(kv_heads, batch):
    ours = model(replace(QUICK.decoder, n_kv_heads=kv_heads, qk_norm=False), 0, "gqa")
    context, new = 20, 3
    cache = filled_cache(ours, random_tokens(ours, 1, context + 1).expand(batch, -1), new)
    held = [(layer.attention.keys, layer.attention.values) for layer in cache.layers]
    limit = limits.decode_products(limits.weights(ours), held, ours.cfg.n_heads, context + 1, new).contestant
    assert limit.units == new
    attention = 0 if kv_heads == 8 else sum(a.decode_flops(context) for a in ours.attention_modules())
    assert counted(limit.run) == new * batch * (decode_flops(ours, context) - attention)
    assert calls_of(limit.run)["_scaled_dot_product_flash_attention_for_cpu"] == (0 if kv_heads == 8 else 2 * new)


def test_reading_is_every_weight_and_the_whole_cache():
    ours = model(replace(QUICK.decoder, qk_norm=False), 0)
    cache = filled_cache(ours, random_tokens(ours, 1, 21).expand(2, -1), 3)
    held = [(layer.attention.keys, layer.attention.values) for layer in cache.layers]
    added = []

    class Sums(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            added.append(args[0].nbytes if func.overloadpacket.__name__ == "sum" else 0)
            return func(*args, **(kwargs or {}))

    limit = limits.reading(limits.weights(ours), held, 3).contestant
    with Sums():
        limit.run()
    assert sum(added) == 3 * (cache.nbytes + sum(w.nbytes for w in limits.weights(ours)))


def test_weights_are_all_but_the_norms():
    ours = model(replace(QUICK.decoder, qk_norm=False), 0)
    gains = sum(p.numel() for p in ours.parameters() if p.dim() == 1)
    assert sum(w.numel() for w in limits.weights(ours)) == ours.parameter_count() - gains


def test_out_of_reach_is_said_only_when_all_of_the_interval_is():
    ours, below, around = Interval(1.0, 0.9, 1.1), Interval(1.2, 1.1, 1.4), Interval(1.4, 1.3, 1.6)
    assert verdict(ours, 1.5, below) == "out of reach"
    assert verdict(Interval(1.0, 0.9, 1.6), 1.5, below) == "out of reach"
    assert verdict(ours, 1.5, around) == "not met"
    assert verdict(ours, 1.5, None) == "not met"
    assert verdict(Interval(1.6, 1.55, 1.7), 1.5, below) == "met"  # whatever a limit says, a bar that is met is met
    assert verdict(ours, None, below) == "no bar"


def test_a_line_holds_the_limit_of_the_same_rounds():
    def entry(name: str, units: int = 1):
        return lambda: Entry(Contestant(lambda: torch.ones(2**16).sum(), units=units))

    entries = {"ours": entry("ours"), "theirs": entry("theirs"), "limit": entry("limit", units=4)}
    shape = {"T": 1, "B": 1, "H": 1, "G": 1, "D": 1, "dtype": "float32"}
    bars = [Bar("sums", "ours", ("theirs",), 1e9, limit="limit"), Bar("sums", "ours", ("theirs",), 1e9)]
    rows, (line, without) = run(Race("sums", shape, (), entries, bars, rounds=7), seconds=5.0, seed=0)
    assert len(rows[2]["timing"]["samples"]) == len(rows[0]["timing"]["samples"]) == line["rounds"]
    pairs = zip(rows[1]["timing"]["samples"], rows[2]["timing"]["samples"], strict=True)
    ratios = sorted(theirs / limit for theirs, limit in pairs)
    assert line["limit"]["name"] == "limit"
    assert line["limit"]["median"] == rows[2]["timing"]["median"]
    assert (line["at_most"]["median"], line["verdict"]) == (ratios[len(ratios) // 2], "out of reach")
    assert (without["limit"], without["at_most"], without["verdict"]) == (None, None, "not met")


def test_a_limit_that_fails_leaves_the_line_and_says_why():
    def broken():
        raise ValueError("no such product")

    entries = {name: lambda: Entry(Contestant(lambda: None)) for name in ("ours", "theirs")} | {"limit": broken}
    shape = {"T": 1, "B": 1, "H": 1, "G": 1, "D": 1, "dtype": "float32"}
    race = Race("nothing", shape, (), entries, [Bar("nothing", "ours", ("theirs",), 1e9, limit="limit")], rounds=6)
    _, (line,) = run(race, seconds=5.0, seed=0)
    assert (line["verdict"], line["at_most"]) == ("not met", None)
    assert "no such product" in line["reasons"][0]


@pytest.mark.parametrize(("race", "limited"), [("train", 2), ("decode", 6), ("gqa", 3)])
def test_races_with_a_limit(race, limited, monkeypatch):
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    found = bench_peers([race], quick=True, seconds=0.01, verify=lambda *_: ("ok", []))
    lines = [bar for bar in found["bars"] if bar["limit"]]
    assert len(lines) == limited
    status = {row["backend"]: row["status"] for row in found["rows"]}
    for bar in lines:
        assert status[bar["limit"]["name"]] == "ok"
        if bar["ratio"]:  # the peer is installed
            assert bar["at_most"]["low"] <= bar["at_most"]["median"] <= bar["at_most"]["high"]
