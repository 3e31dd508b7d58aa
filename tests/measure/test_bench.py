import json
import time

import pytest
import torch

from attnzoo import build, components, registry
from attnzoo.backends.sliding_window import SlidingWindow
from attnzoo.contract import Attention
from attnzoo.errors import RequestError
from attnzoo.measure import bench_operator, bench_turns, roofline
from attnzoo.measure.bench import bench, bench_shapes, cache_of, planned
from attnzoo.measure.bench_model import decode_flops
from attnzoo.measure.bench_row import Work
from attnzoo.measure.latency import Contestant, Timing
from attnzoo.measure.roofline import operator_work, reach
from attnzoo.measure.trend import counterparts
from attnzoo.model import compiled
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig

SMALL = {"n_heads": 2, "head_dim": 16, "rounds": 2, "seconds": 1.0, "n_layers": 1, "decode_tokens": 2}


def trust(name, device, dtype, options):
    return "ok", []


def test_operator_rows():
    options = {"sliding_window": {"window": 8}}
    found = bench(["sdpa", "sliding_window", "flex"], lengths=[32, 64], options=options, verify=trust, **SMALL)
    json.dumps(found, allow_nan=False)
    rows = {(r["backend"], r["op"], r["T"]): r for r in found["rows"]}
    own = rows["sliding_window", "forward+backward", 64]
    assert own["timing"]["ratio"]["to"] == "sdpa"
    assert own["kernel"] == "blocks/flash"
    assert own["peak_memory_bytes"] > 0
    assert own["flops"] == 3 * rows["sliding_window", "forward", 64]["flops"]
    assert rows["sdpa, sliding_window's mask", "forward", 32]["kernel"].endswith("+mask")
    assert rows["flex", "forward", 32]["status"] == "ok"
    refused = rows["flex", "forward+backward", 32]
    assert refused["status"] == "refused"
    assert refused["timing"] is None
    assert "backward" in refused["reasons"][0]
    assert {g["backend"] for g in found["growth"]} == {"sdpa", "sliding_window", "flex", "sdpa, sliding_window's mask"}


def test_model_rows():
    found = bench(["sdpa", "linear"], level="model", lengths=[16], verify=trust, **SMALL)
    assert {(r["backend"], r["op"]) for r in found["rows"] if r["status"] == "ok"} == {
        (name, op) for name in ("sdpa", "linear") for op in ("train_step", "prefill", "decode", "generate")
    }


def test_no_speed_without_correctness():
    def doubt(name, device, dtype, options):
        return ("incorrect", ["fails the quick check: causality"]) if name == "linear" else ("ok", [])

    found = bench(["sdpa", "linear"], lengths=[16], verify=doubt, **SMALL)
    wrong = [r for r in found["rows"] if r["backend"] == "linear"]
    assert {r["status"] for r in wrong} == {"incorrect"}
    assert all(r["timing"] is None and r["reasons"] == ["fails the quick check: causality"] for r in wrong)


def test_what_cannot_be_measured_is_one_error():
    with pytest.raises(RequestError) as error:
        bench(["sdpaa"], level="modle", lengths=[0], rounds=0)
    assert len(error.value.reasons) == 4
    assert "did you mean 'sdpa'" in str(error.value)


def test_scores_that_do_not_fit_are_refused_before(monkeypatch):
    monkeypatch.setattr(bench_operator, "_available_bytes", lambda: 1000)
    found = bench(["exact", "sdpa"], lengths=[64], verify=trust, **SMALL)
    assert {r["status"] for r in found["rows"] if r["backend"] == "exact"} == {"refused"}
    assert {r["status"] for r in found["rows"] if r["backend"] == "sdpa"} == {"ok"}


def test_the_dense_mask_contestant_computes_the_same(monkeypatch):
    setting = bench_operator.Setting(1, 2, None, 8, torch.float32, "cpu", 1, 1, 0, {"sliding_window": {"window": 5}})
    attn = build("sliding_window", n_heads=2, head_dim=8, window=5)
    q, k, v = (torch.randn(1, 2, 20, 8) for _ in range(3))
    seen = []
    original = bench_operator._work
    monkeypatch.setattr(
        bench_operator, "_work", lambda attn, call, *rest: seen.append(call) or original(attn, call, *rest)
    )
    bench_operator.dense_masks(["sliding_window", "sdpa"], "forward", setting, 20)
    assert len(seen) == 1
    torch.testing.assert_close(seen[0](q, k, v), attn(q, k, v))


def test_roofline_by_hand():
    attn = build("sdpa", n_heads=2, n_kv_heads=1, head_dim=8)
    flops, n_bytes = operator_work(attn, "forward", 3, 4, torch.float32)
    assert flops == 3 * 4 * 2 * 8 * 10  # 4·H·D per visible pair, 4·5/2 of them, 3 sequences
    assert n_bytes == 4 * (3 * 2 * 4 * 8 * 2 + 3 * 1 * 4 * 8 * 2)
    rates = {"matmul_flops_per_s": 1e9, "copy_bytes_per_s": 1e9}
    assert reach(2e6, 1e6, 4.0, rates) == {"bound_ms": 2.0, "share": 0.5}


def test_a_type_that_is_emulated_does_not_lower_the_roof(monkeypatch):
    def turns(works, **_):
        ms = {torch.bfloat16: 50.0, torch.float32: 2.0}
        return {name: Timing(samples=[ms.get(name, 1.0)] * 6) for name in works}

    monkeypatch.setattr(roofline, "take_turns", turns)
    for dtype in (torch.bfloat16, torch.float32):
        assert roofline.machine_rates("cpu", dtype)["matmul_flops_per_s"] == 2 * 1024**3 / 2.0 * 1000


def test_a_model_s_bytes_by_hand():
    found = bench(["sdpa"], level="model", lengths=[16], verify=trust, **SMALL)
    bytes_of = {row["op"]: row["bytes"] for row in found["rows"]}
    parameters = found["rows"][0]["parameters"] * 4
    state = 2 * 16 * 2 * 16 * 4  # keys and values of 16 tokens, 2 heads of 16
    read = parameters + state
    assert bytes_of == {"train_step": 6 * parameters, "prefill": read, "decode": read, "generate": 1.5 * read}
    for row in found["rows"]:  # what memory takes is the bound where little is computed
        rates = found["machine"]
        bound = max(row["flops"] / rates["matmul_flops_per_s"], row["bytes"] / rates["copy_bytes_per_s"])
        assert row["bound_ms"] == pytest.approx(1000 * bound)


def test_decoding_costs_what_a_full_pass_adds():
    lm = assemble(ModelConfig(n_layers=2, d_model=16, n_heads=2), AttentionConfig("sdpa", {}), PositionsConfig(), 32, 0)
    assert decode_flops(lm, 10) == lm.flops(11) - lm.flops(10)


def test_decoding_a_state_costs_the_same_after_any_context():
    def attention(name: str, context: int, **options) -> float:
        lm = assemble(ModelConfig(1, 16, 2), AttentionConfig(name, options), PositionsConfig(), 32, 0)
        return decode_flops(lm, context) - lm.flops(1) + lm.layers[0].attention.attention.flops(1, 1)

    h, d, e = 2, 8, 9  # two reads and writes of the state, a product of q and k, one with v: two operations each
    assert attention("linear", 10) == attention("linear", 5000) == h * (4 * d * e + 2 * (d + e))
    assert attention("deltanet", 10) == attention("deltanet", 5000)
    assert attention("based", 10, window=4) == attention("based", 5000, window=4) > attention("based", 2, window=4)


def test_generation_and_chosen_works():
    found = bench(["sdpa"], level="model", ops=["generate"], lengths=[16], verify=trust, **SMALL)
    (row,) = found["rows"]
    assert (row["op"], row["status"]) == ("generate", "ok")
    with pytest.raises(RequestError, match="unknown work of the level operator 'train_step'"):
        bench(["sdpa"], ops=["train_step"], lengths=[16])


def test_compiled_contestants_take_part_and_their_compilation_is_kept_apart(monkeypatch):
    compiled = []

    def slow_to_compile(module, dynamic):
        compiled.append(dynamic)
        calls = []

        def run(*args):
            if not calls:
                time.sleep(0.3)
            calls.append(1)
            return module(*args)

        return run

    monkeypatch.setattr(torch, "compile", slow_to_compile)
    found = bench(["sdpa"], ops=["forward"], lengths=[16], compiled=True, verify=trust, **SMALL)
    rows = {row["backend"]: row for row in found["rows"]}
    assert set(rows) == {"sdpa", "sdpa, compiled"}
    assert compiled == [False]
    own = rows["sdpa, compiled"]
    assert own["kernel"] == "compiled"
    assert own["compile_s"] > 0.25
    assert max(own["timing"]["samples"]) < 250
    assert own["timing"]["ratio"]["to"] == "sdpa"


@pytest.mark.parametrize("op", ["decode", "generate"])
def test_a_compiled_step_decodes(monkeypatch, op):
    graphs = []

    def slow_to_compile(graph, _):
        time.sleep(0.3)
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(compiled, "BACKEND", slow_to_compile)
    found = bench(["sdpa"], level="model", ops=[op], lengths=[8], compiled=True, verify=trust, **SMALL)
    assert [(row["backend"], row["status"]) for row in found["rows"]] == [("sdpa", "ok"), ("sdpa, compiled", "ok")]
    assert len(graphs) == 1
    assert found["rows"][1]["compile_s"] > 0.3  # of the call, not of each of its tokens


def test_several_shapes_are_one_bench_and_are_checked_once():
    asked = []

    def verify(name, device, dtype, options):
        asked.append((name, dtype))
        return "ok", []

    shapes = [
        {"batch_size": b, "n_heads": 4, "n_kv_heads": g, "head_dim": 8, "dtype": dtype}
        for b, g, dtype in ((1, 4, torch.float32), (2, 1, torch.float32), (2, 1, torch.bfloat16))
    ]
    found = bench_shapes(["sdpa"], shapes, ops=["forward"], lengths=[8, 16], rounds=2, verify=cache_of(verify))
    assert asked == [("sdpa", torch.float32), ("sdpa", torch.bfloat16)]
    assert [(r["B"], r["G"], r["dtype"], r["T"]) for r in found["rows"]] == [
        (b, g, dtype, n) for b, g, dtype in ((1, 4, "float32"), (2, 1, "float32"), (2, 1, "bfloat16")) for n in (8, 16)
    ]
    assert len({(fit["B"], fit["n_kv_heads"], fit["dtype"]) for fit in found["growth"]}) == 3
    assert found["machine"]["dtype"] == "float32, bfloat16"
    assert "matmul_flops_per_s" not in found["machine"]
    assert found["machine"]["matmul_flops_per_s_bfloat16"] > 0
    json.dumps(found, allow_nan=False)


def test_options_are_checked_before():
    with pytest.raises(RequestError) as error:
        bench(["sdpa", "linear"], options={"linear": {"chunks": 3}, "gqa": {}})
    assert "options for gqa, which is not measured" in error.value.reasons
    assert "did you mean 'chunk'" in str(error.value)


def test_peak_memory_in_a_fresh_process():
    found = bench(
        ["exact"], ops=["forward"], lengths=[512], fresh_memory=True, dense_masks=False, verify=trust, **SMALL
    )
    (row,) = found["rows"]
    assert row["peak_memory_bytes"] >= 2 * 512 * 512 * 4  # H matrices of scores in float32
    assert row["process_peak_bytes"] > 0
    assert "process of its own" in row["memory_method"]
    assert "resident" in row["process_method"]


def test_a_time_limit_leaves_rows_that_say_so():
    found = bench(["sdpa", "linear"], lengths=[16], limit=1e-9, verify=trust, dense_masks=False, **SMALL)
    assert {row["status"] for row in found["rows"]} == {"interrupted"}
    assert all("time limit" in row["reasons"][0] for row in found["rows"])


class Pace:
    """A clock that only works, checks and weighings move; what a work takes is linear in its tokens."""

    def __init__(self, monkeypatch, a_check: float, a_call: dict[str, float]):
        self.now, self.a_check, self.a_call = 0.0, a_check, a_call
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(bench_turns, "maker", lambda level: self.make)
        monkeypatch.setattr(bench_turns, "peak_memory", lambda run, device: (run() or 1, "counted"))
        monkeypatch.setattr("attnzoo.measure.bench.machine_rates", lambda *_: dict.fromkeys(roofline.RATES, 1e9))

    def make(self, name, op, setting, n_tokens, compiled):
        return Work(Contestant(lambda: self.spend(self.a_call.get(name, 0.1) * n_tokens / 512)), 2)

    def spend(self, seconds):
        self.now += seconds

    def verify(self, *_):
        self.spend(self.a_check)
        return "ok", []


def test_a_time_limit_is_for_checks_warm_up_rounds_and_memory_together(monkeypatch):
    """Of 15 backends at three lengths, of which one is slow."""
    names = [name for name in registry.list_backends() if name != "exact"][:14]
    pace = Pace(monkeypatch, a_check=2.0, a_call={"exact": 8.0})
    settings = {"lengths": [512, 1024, 2048], "dense_masks": False, "rounds": 20, "verify": pace.verify}
    found = bench(["exact", *names], limit=200.0, **settings)
    assert pace.now <= 200 + 8.0  # a call that has begun is finished
    ok = [row for row in found["rows"] if row["status"] == "ok"]
    assert {row["backend"] for row in ok} >= set(names)
    assert all(row["timing"]["rounds"] and row["peak_memory_bytes"] for row in ok)
    slow = {(row["T"], row["status"]) for row in found["rows"] if row["backend"] == "exact" and row["T"] > 512}
    assert slow == {(1024, "interrupted"), (2048, "interrupted")}
    assert len(found["rows"]) == 2 * 3 * 15
    start = pace.now
    tight = bench(["exact", *names], limit=60.0, **settings)
    assert pace.now - start <= 60 + 8.0
    for row in tight["rows"]:
        assert (row["timing"] and row["peak_memory_bytes"]) or "time limit" in row["reasons"][0]
    start = pace.now
    bench(["exact", *names], **settings)
    assert pace.now - start > 210  # without a limit it takes longer


def test_checks_take_half_of_the_limit_and_leave_the_other_half_to_what_passed(monkeypatch):
    pace = Pace(monkeypatch, a_check=30.0, a_call={})
    shapes = [{"batch_size": b} for b in (1, 2)]
    settings = {"lengths": [512], "ops": ["forward"], "dense_masks": False, "verify": pace.verify}
    found = bench_shapes(["sdpa", "exact", "linear", "gqa"], shapes, limit=100.0, **settings)
    assert pace.now <= 100 + 30.0
    first = {row["backend"]: row for row in found["rows"] if row["B"] == 1}
    assert [first[name]["status"] for name in ("sdpa", "exact", "linear", "gqa")] == ["ok"] * 2 + ["interrupted"] * 2
    assert first["gqa"]["reasons"] == ["its share of the time limit, 50 of 100 s, was over before its quick check"]


def test_what_will_be_measured_is_known_before():
    names, shapes = ["sdpa", "mqa", "flex"], [{"batch_size": 1, "n_heads": 4, "head_dim": 8, "dtype": torch.float32}]
    work = {"ops": ["forward+backward"], "lengths": [8, 16]}
    plan = planned(names, shapes, **work)
    found = bench_shapes(names, shapes, rounds=1, dense_masks=False, verify=trust, **work)
    assert {"ok", "refused"} == {row["status"] for row in found["rows"]}
    pairs = counterparts(plan, found)  # a refused row too has the backend's own G
    assert len(pairs) == len(plan["rows"]) == len(found["rows"]) == 6


class Dense(SlidingWindow):
    """The window through a dense mask of all keys: what the benchmark must show."""

    def attend(self, q, k, v, mask, bias, x):
        return Attention.attend(self, q, k, v, mask, bias, x)


class Copying(type(build("sdpa", n_heads=1, head_dim=8))):
    """A cache that is concatenated anew at every token."""

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        cache.keys, cache.values = (
            torch.cat([held[:, :, : cache.length], new, held[:, :, cache.length + 1 :]], 2)
            for held, new in ((cache.keys, k), (cache.values, v))
        )
        cache.length += k.shape[2]
        return self.attend(q, cache.keys[:, :, : cache.length], cache.values[:, :, : cache.length], mask, bias, x)


@pytest.fixture
def planted():
    components.load("attention")
    for name, cls in (("planted_dense", Dense), ("planted_copying", Copying)):
        components.register(name)(cls)
    yield
    for name in ("planted_dense", "planted_copying"):
        del components._classes["attention"][name]


def test_a_dense_mask_shows_in_the_growth_of_memory(planted):
    sizes = SMALL | {"n_heads": 1, "head_dim": 8}
    options = {name: {"window": 16} for name in ("planted_dense", "sliding_window")}
    found = bench(list(options), ops=["forward"], lengths=[1024, 2048], options=options, dense_masks=False,
                  verify=trust, **sizes)  # fmt: skip
    verdicts = {g["backend"]: g["verdict"] for g in found["growth"] if g["quantity"] == "memory"}
    assert verdicts == {"planted_dense": "grows faster than declared", "sliding_window": "as declared"}


def test_a_copied_cache_shows_in_the_memory_of_decoding(planted):
    found = bench(["planted_copying", "sdpa"], level="model", ops=["decode"], lengths=[512], verify=trust, **SMALL)
    share = {row["backend"]: row["peak_memory_bytes"] / row["state_bytes"] for row in found["rows"]}
    assert share["planted_copying"] > 0.5  # of the one layer, the keys at least
    assert share["sdpa"] < 0.5
