import json
import time

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from attnzoo import build, registry
from attnzoo.backends.sliding_window import SlidingWindow
from attnzoo.contract import Attention
from attnzoo.errors import RequestError
from attnzoo.measure import bench_operator, roofline
from attnzoo.measure.bench import bench, bench_shapes, cache_of
from attnzoo.measure.bench_model import decode_flops
from attnzoo.measure.latency import Timing
from attnzoo.measure.roofline import operator_work, reach
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
    counter = CompileCounter()
    monkeypatch.setattr(compiled, "BACKEND", counter)
    found = bench(["sdpa"], level="model", ops=[op], lengths=[8], compiled=True, verify=trust, **SMALL)
    assert [(row["backend"], row["status"]) for row in found["rows"]] == [("sdpa", "ok"), ("sdpa, compiled", "ok")]
    assert counter.frame_count == 1
    assert found["rows"][1]["compile_s"] > 0


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
    registry.load()
    for name, cls in (("planted_dense", Dense), ("planted_copying", Copying)):
        registry.register(name)(cls)
    yield
    for name in ("planted_dense", "planted_copying"):
        del registry._classes[name]


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
