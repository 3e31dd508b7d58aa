"""Races against peers. Packages that are not installed give rows that say so, and the tests hold either way."""

import io
import json
import sys

import pytest
import torch
from rich.console import Console

from attnzoo import cli
from attnzoo.errors import RequestError
from attnzoo.measure import peers
from attnzoo.measure.interval import Interval
from attnzoo.measure.latency import Contestant
from attnzoo.measure.peers import bench_peers, lucidrains, plain
from attnzoo.measure.peers.race import Bar, Differs, Entry, Race, expect_same, run, verdict
from attnzoo.measure.peers.training import model
from attnzoo.measure.trend import regressions
from attnzoo.model import compiled
from attnzoo.model.config import ModelConfig
from attnzoo.report.bench_html import bench_html
from attnzoo.report.bench_table import bench_csv, print_bench


def trust(name, device, dtype, options):
    return "ok", []


def quick(*names):
    return bench_peers(names, quick=True, seconds=0.01, verify=trust)


def installed(row) -> bool:
    """Whether a contestant ran; one that did not must be a package that is missing."""
    if row["status"] == "ok":
        return True
    assert row["status"] == "refused", row
    assert "pip install 'attnzoo[peers]'" in row["reasons"][0], row
    return False


@pytest.mark.parametrize(
    ("race", "bars"),
    [
        ("train", 3),
        ("bf16", 1),
        ("window", 2),
        ("linear", 2),
        ("block_sparse", 1),
        ("decode", 8),
        ("flat", 4),
        ("gqa", 9),
    ],
)
def test_every_race_runs_and_every_peer_computes_the_same(race, bars, monkeypatch):
    monkeypatch.setattr(compiled, "BACKEND", "eager")  # traced alone: generating code takes half a minute
    found = quick(race)
    json.dumps(found, allow_nan=False)
    ran = {row["backend"] for row in found["rows"] if installed(row)}
    assert len(found["bars"]) == bars
    for bar in found["bars"]:
        assert (bar["ratio"] is not None) == (
            bar["ours"]["name"] in ran and bool(ran & set(bar["peer"]["name"].split(" / ")))
        )
        if bar["ratio"]:
            assert bar["ratio"]["low"] <= bar["ratio"]["median"] <= bar["ratio"]["high"]
            assert bar["rounds"] >= 1


def test_flat_states_and_small_caches_by_count():
    bars = [bar for bar in quick("flat", "gqa")["bars"] if bar["quantity"] == "state_bytes"]
    assert [(bar["ratio"]["median"], bar["verdict"]) for bar in bars] == [(1.0, "met")] * 2 + [(8.0, "met")] * 3


def test_a_missing_package_is_a_row_with_its_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "local_attention", None)
    found = quick("window")
    row = next(r for r in found["rows"] if r["backend"] == "local-attention")
    assert row["timing"] is None
    assert not installed(row)
    assert found["bars"][0]["verdict"] == "not measured"
    assert found["bars"][1]["ratio"] is not None  # the other race of the work goes on


def test_a_peer_with_other_numbers_is_not_timed(monkeypatch):
    def wider(window):  # one key too many
        def call(q, k, v):
            i = torch.arange(q.shape[2])
            seen = (i[None] <= i[:, None]) & (i[None] >= i[:, None] - window)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)

        return call

    monkeypatch.setattr(lucidrains, "local_attention", wider)
    found = quick("window")
    row = next(r for r in found["rows"] if r["backend"] == "local-attention")
    assert (row["status"], row["timing"]) == ("incorrect", None)
    assert "differs from ours" in row["reasons"][0]
    assert found["bars"][0]["verdict"] == "not measured"


def test_nothing_is_timed_without_a_passed_check():
    found = bench_peers(["window"], quick=True, verify=lambda *_: ("incorrect", ["fails the quick check: causality"]))
    assert {row["status"] for row in found["rows"]} == {"incorrect"}
    assert {bar["verdict"] for bar in found["bars"]} == {"not measured"}


@pytest.mark.parametrize("kept", [False, True])
def test_freed_memory_is_kept_where_that_is_asked_for(monkeypatch, kept):
    order = []
    monkeypatch.setattr(peers, "keep_freed_memory", lambda: order.append("kept"))
    monkeypatch.setattr(peers, "run", lambda *_, **__: order.append("raced") or ([], []))
    bench_peers(["window"], quick=True, keep_freed=kept, verify=trust)
    assert order == ["kept"] * kept + ["raced", "raced"]


def test_the_plain_model_is_ours():
    for qk_norm in (True, False):
        ours = model(ModelConfig(n_layers=2, d_model=32, n_heads=4, qk_norm=qk_norm), seed=1)
        with torch.no_grad():  # gains of 1 would hide a norm that is left out
            for name, p in ours.named_parameters():
                if "norm" in name:
                    p.uniform_(0.5, 2.0)
        theirs, tokens = plain.plain_copy(ours.state_dict(), ours.cfg, 24), torch.randint(256, (2, 24))
        torch.testing.assert_close(theirs(tokens), ours(tokens), rtol=0, atol=1e-5)


def test_close_is_the_same_and_a_key_more_is_not():
    values = torch.randn(4, 64)
    expect_same(values * (1 + 1e-6), values, "x")
    with pytest.raises(Differs):
        expect_same(values + 1 / 128, values, "x")


def test_the_fastest_peer_counts_and_it_takes_part_in_the_same_rounds():
    calls = []
    entries = {name: lambda name=name: Entry(Contestant(lambda: calls.append(name))) for name in ("ours", "a", "b")}
    shape = {"T": 1, "B": 1, "H": 1, "G": 1, "D": 1, "dtype": "float32"}
    race = Race("nothing", shape, (), entries, [Bar("nothing", "ours", ("a", "b"), 1e9)], rounds=8)
    rows, (line,) = run(race, seconds=5.0, seed=0)
    assert [row["backend"] for row in rows] == ["ours", "a", "b"]
    assert line["verdict"] == "not met"
    times = {row["backend"]: row["timing"]["median"] for row in rows}
    assert line["peer"]["name"] == min("ab", key=times.get)
    assert len({len(row["timing"]["samples"]) for row in rows}) == 1


def test_verdicts():
    assert verdict(Interval(2.0, 1.6, 2.2), 1.5) == "met"
    assert verdict(Interval(2.0, 1.4, 2.2), 1.5) == "met, within noise"
    assert verdict(Interval(1.4, 1.3, 1.6), 1.5) == "not met, within noise"
    assert verdict(Interval(1.2, 1.1, 1.4), 1.5) == "not met"
    assert verdict(Interval(1.2, 1.1, 1.4), None) == "no bar"


def bar(median: float, **changes):
    ratio = {"median": median, "low": median * 0.97, "high": median * 1.03}
    side = {"median": 1.0, "low": 1.0, "high": 1.0}
    return {
        "race": "window", "work": "sliding_window", "quantity": "time", "bar": 1.5, "ratio": ratio, "verdict": "met",
        "ours": {"name": "ours", **side}, "peer": {"name": "theirs", **side}, "rounds": 9, "reasons": [],
        "limit": {"name": "limit", **side}, "at_most": {"median": 1.1, "low": 1.05, "high": 1.2}, **changes,
    }  # fmt: skip


def test_what_fell_back_against_a_peer_is_named():
    old = {"rows": [], "bars": [bar(2.0)]}
    assert regressions({"rows": [], "bars": [bar(1.99)]}, old) == []
    (worse,) = regressions({"rows": [], "bars": [bar(1.0)]}, old)
    assert (worse["before"], worse["after"], worse["what"]) == (2.0, 1.0, "time")
    (gone,) = regressions({"rows": [], "bars": [bar(1.0, ratio=None, verdict="not measured")]}, old)
    assert gone["after"] == "not measured"
    (larger,) = regressions(*({"rows": [], "bars": [bar(x, quantity="state_bytes")]} for x in (1.0, 2.0)))
    assert larger["what"] == "memory"
    for past in (old, {"rows": [], "bars": [bar(1.0, work="another", ratio=None)]}):
        with pytest.raises(RequestError):
            regressions({"rows": [], "bars": [bar(1.0, work="another")]}, past)


def test_noise_is_no_loss_against_a_peer():
    def ratio(median, low, high):
        return bar(median, ratio={"median": median, "low": low, "high": high})

    old = {"rows": [], "bars": [ratio(2.0, 1.99, 2.01)]}
    assert regressions({"rows": [], "bars": [ratio(1.0, 0.5, 2.5)]}, old) == []  # the intervals meet
    assert regressions({"rows": [], "bars": [ratio(1.95, 1.94, 1.96)]}, old) == []  # 3 %
    assert len(regressions({"rows": [], "bars": [ratio(1.8, 1.79, 1.81)]}, old)) == 1


def test_a_line_is_the_same_whichever_of_its_peers_is_fastest():
    fast, side = ["static", "dynamic"], {"median": 1.0, "low": 1.0, "high": 1.0}
    old = {"rows": [], "bars": [bar(2.0, peers=fast, peer={"name": "static", **side})]}
    (worse,) = regressions({"rows": [], "bars": [bar(1.0, peers=fast, peer={"name": "dynamic", **side})]}, old)
    assert worse["by"] == "times as fast as dynamic"
    with pytest.raises(RequestError):  # of another contestant of ours
        regressions({"rows": [], "bars": [bar(1.0, peers=fast, ours={"name": "reading", **side})]}, old)


def test_sizes_that_races_do_not_take_are_refused(capsys):
    words = ["bench", "peers", "flat", "--lengths", "64", "--n-heads", "8", "--compile", "--device", "cuda"]
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    for word in ("--lengths", "--n-heads", "--compile", "--device cuda"):
        assert word in said, word


def test_the_table_the_page_and_the_csv():
    found = {
        "rows": [],
        "bars": [bar(2.0), bar(8.0, quantity="state_bytes", reasons=["<why>"], limit=None, at_most=None)],
        "machine": {},
    }
    console = Console(file=io.StringIO(), width=200)
    print_bench(found, console)
    for word in (
        "sliding_window, state",
        "2.00 × [1.94, 2.06]",
        "1.50 ×",
        "theirs: 1.00 ms",
        "<why>",
        "at most 1.10 × [1.05, 1.20] by limit: 1.00 ms",
    ):
        assert word in console.file.getvalue(), word
    assert "[1.94, 2.06]" in bench_html(found)
    assert console.file.getvalue().count("at most") == bench_html(found).count("[1.05, 1.20]") == 1
    assert bench_csv(found).startswith("backend,")


def test_one_command(tmp_path, capsys):
    words = ["bench", "peers", "gqa", "--quick", "--seconds", "0.01"]
    assert cli.main([*words, "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["backend"] for row in found["rows"]} >= {"G = 1", "G = 8"}
    assert json.loads((tmp_path / "bench.json").read_text()) == found
    for line in found["bars"]:  # once it was a thousand times better
        line["ratio"] = {key: 1000 * value for key, value in line["ratio"].items()}
    (tmp_path / "old.json").write_text(json.dumps(found))
    assert cli.main([*words, "--against", str(tmp_path / "old.json")]) == 1
    assert "G = 1" in capsys.readouterr().err
    (tmp_path / "other.json").write_text("{}")
    assert cli.main([*words, "--against", str(tmp_path / "other.json")]) == 2
    assert "holds no benchmark" in capsys.readouterr().err
    assert cli.main(["bench", "peers", "trian"]) == 2
    assert "did you mean 'train'" in capsys.readouterr().err
