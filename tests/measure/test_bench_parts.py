"""What a benchmark builds, asks and keeps: every argument arrives where it belongs, and figures are those of a hand."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from attnzoo import build, registry
from attnzoo.errors import Refused
from attnzoo.measure import bench as benches
from attnzoo.measure import bench_model, bench_operator, bench_row, fresh, roofline
from attnzoo.measure.bench_row import Key, Setting, Work, machine, row_of
from attnzoo.measure.latency import Contestant, Timing
from attnzoo.measure.memory import CPU_METHOD
from attnzoo.measure.roofline import operator_work, reach
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig

OPTIONS = {"sliding_window": {"window": 5}}
RATES = {"matmul_flops_per_s": 1e9, "copy_bytes_per_s": 1e8}


def setting(**changed) -> Setting:
    plain = {"batch_size": 3, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "dtype": torch.float32, "device": "cpu",
             "n_layers": 2, "decode_tokens": 5, "seed": 7, "options": OPTIONS, "vocab_size": 19}  # fmt: skip
    return Setting(**plain | changed)


@pytest.fixture
def asked(monkeypatch):
    """What `why_not` was asked; it has nothing against anything."""
    calls = []
    monkeypatch.setattr(registry, "why_not", lambda name, **how: calls.append((name, how)) or [])
    return calls


ASKED = {"device": "cpu", "dtype": torch.float32, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "window": 5}


# ---- the attention alone


@pytest.mark.parametrize(("op", "training"), [("forward", False), ("forward+backward", True)])
def test_an_operator_is_asked_for_and_built_as_it_is_set(asked, op, training):
    work = bench_operator.make("sliding_window", op, setting(), 16)
    assert asked == [("sliding_window", ASKED | {"training": training})]
    work.contestant.run()
    attn = build("sliding_window", n_heads=4, n_kv_heads=2, head_dim=8, window=5)
    assert (work.n_kv_heads, work.kernel()) == (2, "blocks/flash")
    assert (work.flops, work.bytes) == operator_work(attn, op, 3, 16, torch.float32)
    assert work.contestant.units == 1


def test_what_is_refused_says_so(monkeypatch):
    monkeypatch.setattr(registry, "why_not", lambda *_, **__: ["so", "and so"])
    for make, op in ((bench_operator.make, "forward"), (bench_model.make, "decode")):
        with pytest.raises(Refused) as error:
            make("sdpa", op, setting(), 16)
        assert (error.value.message, error.value.reasons) == (f"sdpa cannot run {op}", ["so", "and so"])


@pytest.mark.parametrize("op", ["forward", "forward+backward"])
def test_an_operator_gets_its_own_inputs_and_a_gradient_only_where_it_goes_back(op):
    seen, attn = [], build("sdpa", n_heads=4, n_kv_heads=2, head_dim=8)

    def call(q, k, v):
        seen.append((q, k, v, torch.is_grad_enabled()))
        return attn(q, k, v)

    work = bench_operator._work(attn, call, op, setting(), 6, lambda: "k")
    work.contestant.run()
    [(q, k, v, recorded)] = seen
    assert [tuple(t.shape) for t in (q, k, v)] == [(3, 4, 6, 8), (3, 2, 6, 8), (3, 2, 6, 8)]
    assert not torch.equal(k, v)
    backward = op != "forward"
    assert [t.requires_grad for t in (q, k, v)] == [backward] * 3
    assert recorded == backward
    again = bench_operator._random(setting(), (3, 4, 6, 8), 0, op)
    assert torch.equal(again, q)
    assert not torch.equal(bench_operator._random(setting(seed=8), (3, 4, 6, 8), 0, op), q)
    bench_operator.forget_inputs()


def test_rules_that_read_x_get_it():
    name = next(n for n in registry.list_backends() if registry.get(n).capabilities.needs_x)
    seen = []

    def call(q, k, v, mask, bias, x):
        seen.append((x, mask, bias))

    made = bench_operator.make(name, "forward", setting(n_kv_heads=None, options={}), 16)
    made.contestant.run()
    bench_operator._call(call, torch.ones(1), *(torch.ones(1),) * 3)
    assert [mask.causal for _, mask, _ in seen] == [True]
    assert seen[0][0] is not None
    assert seen[0][2] is None
    drawn = bench_operator._random(setting(), (3, 16, 4 * 8), 9, "forward")
    hits = bench_operator._drawn.cache_info().hits
    assert hits >= 1, f"x of {name} was drawn as (B, T, C)"
    assert drawn.shape == (3, 16, 32)
    bench_operator.forget_inputs()


def test_scores_are_refused_from_the_size_that_does_not_fit(monkeypatch):
    exact = build("exact", n_heads=4, head_dim=8)
    need = 6 * 3 * 4 * 100**2 * 4
    for dtype in (torch.float32, torch.bfloat16):  # scores in float32 either way
        monkeypatch.setattr(bench_operator, "_available_bytes", lambda: need)
        bench_operator._fits(exact, setting(dtype=dtype), 100)
        monkeypatch.setattr(bench_operator, "_available_bytes", lambda: need - 1)
        with pytest.raises(Refused, match="scores over 100 tokens"):
            bench_operator._fits(exact, setting(dtype=dtype), 100)
    bench_operator._fits(exact, setting(device="cuda"), 100)
    bench_operator._fits(build("sdpa", n_heads=4, head_dim=8), setting(), 10**6)
    monkeypatch.setattr(bench_operator, "_available_bytes", lambda: None)
    bench_operator._fits(exact, setting(), 10**6)


def test_free_memory_is_pages_of_their_size(monkeypatch):
    monkeypatch.setattr(bench_operator.os, "sysconf", {"SC_AVPHYS_PAGES": 3, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert bench_operator._available_bytes() == 12288
    monkeypatch.setattr(bench_operator.os, "sysconf", lambda _: int("x"))
    assert bench_operator._available_bytes() is None


def test_a_dense_mask_is_made_up_to_its_largest_and_for_patterns_alone(monkeypatch):
    small = setting(batch_size=1, n_kv_heads=4)
    works = bench_operator.dense_masks(["sdpa", "linear", "sliding_window"], "forward", small, 12)
    assert list(works) == ["sdpa, sliding_window's mask"]
    [work] = works.values()
    work.contestant.run()
    assert work.kernel().startswith("sdpa/")
    for largest, made in ((12, 1), (11, 0)):
        monkeypatch.setattr(bench_operator, "LARGEST_DENSE", largest)
        assert len(bench_operator.dense_masks(["sliding_window"], "forward", small, 12)) == made
    bench_operator.forget_inputs()


# ---- inside a model


@pytest.mark.parametrize("op", ["train_step", "prefill", "decode", "generate"])
def test_a_model_is_asked_for_and_built_as_it_is_set(asked, monkeypatch, op):
    built, made = [], []
    assemble = bench_model.assemble
    monkeypatch.setattr(bench_model, "assemble", lambda *given: built.append(given) or assemble(*given))
    names = ("train_contestant", "prefill_contestant", "decode_contestant", "generate_contestant")
    for name in names:
        monkeypatch.setattr(
            bench_model, name, lambda lm, *given, name=name: made.append((name, *given)) or Contestant(int)
        )
    work = bench_model.make("sliding_window", op, setting(), 16, compiled=op == "decode")
    assert asked == [("sliding_window", ASKED | {"training": op == "train_step"})]
    sizes = ModelConfig(n_layers=2, d_model=32, n_heads=4, n_kv_heads=2)
    assert built == [(sizes, AttentionConfig("sliding_window", {"window": 5}), PositionsConfig(), 19, 7)]
    expected = {
        "train_step": ("train_contestant", 3, 16, "fp32"),
        "prefill": ("prefill_contestant", 3, 16, "fp32"),
        "decode": ("decode_contestant", 3, 16, 5, "fp32", True),
        "generate": ("generate_contestant", 3, 16, 5, "fp32", False),
    }
    assert made == [expected[op]]
    assert (work.n_kv_heads, work.kernel() == "compiled") == (2, op == "decode")
    lm = assemble(*built[0])
    assert work.extra["parameters"] == lm.parameter_count()
    cache = lm.new_cache(3, 16).nbytes
    assert work.extra.get("state_bytes") == (None if op == "train_step" else cache)
    prompt, each = 3 * lm.flops(16), 3 * bench_model.decode_flops(lm, 16)
    flops = {"train_step": 3 * prompt, "prefill": prompt, "decode": each, "generate": prompt / 5 + each}
    assert work.flops == pytest.approx(flops[op])
    read = sum(p.nbytes for p in lm.parameters()) + cache
    bytes_of = {"train_step": 6 * (read - cache), "prefill": read, "decode": read, "generate": 1.2 * read}
    assert work.bytes == pytest.approx(bytes_of[op])


def test_what_is_compiled_as_a_whole(monkeypatch, asked):
    compiled = []
    monkeypatch.setattr(bench_model.CausalLM, "compile", lambda self, **how: compiled.append(how))
    for op in ("train_step", "prefill"):
        bench_model.make("sdpa", op, setting(), 8, compiled=True)
        bench_model.make("sdpa", op, setting(), 8)
    assert compiled == [{"dynamic": False}] * 2


def test_a_model_has_two_precisions(asked):
    half = bench_model.make("sdpa", "prefill", setting(dtype=torch.bfloat16), 8)
    full = bench_model.make("sdpa", "prefill", setting(), 8)
    assert full.bytes - half.bytes == full.extra["state_bytes"] / 2  # the cache is half as large, the weights are not
    with pytest.raises(Refused, match=r"no model in torch\.float16"):
        bench_model.make("sdpa", "prefill", setting(dtype=torch.float16), 8)


# ---- a row


def test_a_row_by_hand():
    work = Work(Contestant(int, units=4), 2, 3e6, 2e6, lambda: "a kernel", {"parameters": 9})
    timing = Timing(samples=[80.0] * 6, first_ms=1320.0, to=Key("exact", 64), ratios=[2.0] * 6)
    row = row_of(Key("sdpa", 64, True), {"level": "model", "op": "decode"}, setting(), work, timing, RATES)
    json.dumps(row)
    assert row == {
        "backend": "sdpa, compiled", "level": "model", "op": "decode", "T": 64, "B": 3, "H": 4, "G": 2, "D": 8,
        "n_kv_heads": 2, "dtype": "float32", "flops": 3e6, "bytes": 2e6, "peak_memory_bytes": None, "kernel": "a kernel",
        "status": "ok", "reasons": [], "bound_ms": 20.0, "share": 0.25, "parameters": 9, "compile_s": 1.0,
        "timing": {
            "median": 80.0, "low": 80.0, "high": 80.0, "rounds": 6, "first": 1320.0, "samples": [80.0] * 6,
            "ratio": {"to": "exact", "median": 2.0, "low": 2.0, "high": 2.0},
        },
    }  # fmt: skip
    plain = row_of(Key("sdpa", 64), {}, setting(), work, Timing(samples=[1.0], first_ms=9.0), RATES)
    assert "compile_s" not in plain
    assert plain["timing"]["ratio"] is None
    quick = row_of(Key("sdpa", 64, True), {}, setting(), work, Timing(samples=[80.0], first_ms=1.0), RATES)
    assert quick["compile_s"] == 0.0
    nothing = Work(Contestant(int), 2, 1.0)
    assert row_of(Key("sdpa", 64), {}, setting(), nothing, Timing(samples=[1.0]), RATES)["bytes"] is None


def test_a_row_without_numbers_has_its_reasons_and_the_backend_s_own_heads():
    timing = Timing(status="refused", reasons=["so"])
    row = row_of(Key("mqa", 64), {"level": "model", "op": "decode"}, setting(n_kv_heads=None), None, timing, RATES)
    assert (row["G"], row["n_kv_heads"], row["status"], row["reasons"], row["timing"]) == (
        1,
        None,
        "refused",
        ["so"],
        None,
    )
    assert bench_row.kv_heads("mqa", setting(n_kv_heads=4)) == 4
    assert bench_row.kv_heads("gqa", setting(n_kv_heads=None, n_heads=8)) == 2
    work = Work(Contestant(int), 2, 1.0)
    assert row_of(Key("sdpa", 64), {}, setting(), work, Timing(samples=[1.0], status="oom"), RATES)["timing"] is None


def test_keys_and_starting_points():
    key = Key("linear", 64, True)
    assert key.at("sdpa") == Key("sdpa", 64, False)
    assert (str(key), str(key.at("sdpa"))) == ("linear, compiled", "sdpa")
    done = []
    Work(Contestant(int, prepare=lambda: done.append(1)), 1).ready()
    Work(Contestant(int), 1).ready()
    assert done == [1]


def test_the_machine_names_what_it_ran_with():
    shown = machine("cpu", torch.bfloat16, RATES)
    assert (shown["device"], shown["dtype"], shown["memory_method"]) == ("cpu", "bfloat16", CPU_METHOD)
    assert RATES.items() <= shown.items()
    assert set(shown) - set(RATES) == {
        "attnzoo", "python", "torch", "os", "device", "device_name", "cpu", "threads", "git_commit", "git_dirty", "command",
        "start", "dtype", "memory_method",
    }  # fmt: skip


# ---- the roofline


def test_a_backward_pass_reads_and_writes_by_hand():
    attn = build("sdpa", n_heads=4, n_kv_heads=2, head_dim=8)
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2)):
        q, kv = 3 * 4 * 16 * 8 * size, 2 * 3 * 2 * 16 * 8 * size
        flops, forward = operator_work(attn, "forward", 3, 16, dtype)
        assert (flops, forward) == (3 * attn.flops(16, 16), 2 * q + kv)
        # again q, k, v and the output, with its gradient, and three gradients written
        assert operator_work(attn, "forward+backward", 3, 16, dtype) == (3 * flops, forward + (3 * q + kv) + (q + kv))


def test_the_bound_is_the_slower_of_the_two():
    assert reach(3e6, 1e5, 6.0, RATES) == {"bound_ms": 3.0, "share": 0.5}
    assert reach(3e6, 1e6, 20.0, RATES) == {"bound_ms": 10.0, "share": 0.5}
    assert reach(3e6, 1e6, None, RATES) == {"bound_ms": 10.0, "share": None}


def test_rates_are_of_a_product_and_a_copy_both_ways(monkeypatch):
    told = {}

    def turns(works, **how):
        told.update(how)
        for work in works.values():
            work()
        return {name: Timing(samples=[{"copy": 8.0}.get(name, 4.0)] * 6) for name in works}

    monkeypatch.setattr(roofline, "take_turns", turns)
    assert roofline.COPIED[False] == 2**26  # beyond the caches of a CPU
    monkeypatch.setattr(roofline, "COPIED", {False: 1024, True: 1})
    found = roofline.machine_rates("cpu", torch.float32)
    assert found == {"matmul_flops_per_s": 2 * 1024**3 / 0.004, "copy_bytes_per_s": 2 * 1024 / 0.008}
    assert told == {"rounds": 9, "seconds": 2.0, "device": "cpu"}


# ---- memory in a process of its own


def test_a_fresh_process_is_told_everything(monkeypatch):
    sent = []
    monkeypatch.setattr(fresh, "in_own_process", lambda *given: sent.append(given) or {"status": "ok"})
    fresh.fresh_peak("model", "sliding_window", "decode", setting(), 16, timeout=3.0)
    [(module, description, timeout)] = sent
    assert (module, timeout) == ("attnzoo.measure.fresh", 3.0)
    made, steps = [], []

    class Step:
        def __init__(self, n_tokens):
            self.n_tokens, self.contestant = n_tokens, SimpleNamespace(run=lambda: steps.append(("run", n_tokens)))

        def ready(self):
            steps.append(("ready", self.n_tokens))

    def make(name, op, its, n_tokens):
        made.append((name, op, its, n_tokens))
        return Step(n_tokens)

    monkeypatch.setattr(fresh, "maker", lambda level: made.append(level) or make)
    monkeypatch.setattr(fresh, "reset_process_peak", lambda: steps.append("reset") or (1000, "by hand"))
    monkeypatch.setattr(fresh, "process_peak", lambda: steps.append("read") or 1700)
    monkeypatch.setattr(fresh, "peak_memory", lambda work, device: (work(), (50, f"on {device}"))[1])
    found = fresh._measure(json.loads(json.dumps(description)))
    assert made == ["model", ("sliding_window", "decode", setting(), 16), ("sliding_window", "decode", setting(), 16)]
    # a small call first, then the rise of one, then what it allocates; each from its starting point
    one = [("ready", 16), ("run", 16)]
    assert steps == [*one, ("ready", 16), "reset", ("run", 16), "read", *one]
    assert found == {
        "status": "ok", "reasons": [], "bytes": 50, "process_bytes": 700, "method": "on cpu, process of its own",
        "process_method": "by hand",
    }  # fmt: skip
    made.clear()
    fresh._measure(description | {"n_tokens": 1000})
    assert [n for *_, n in made[1:]] == [64, 1000]
    monkeypatch.setattr(fresh, "maker", lambda level: lambda *_: (_ for _ in ()).throw(Refused("no", ["why"])))
    refused = fresh._measure(description)
    assert (refused["status"], refused["reasons"], refused["bytes"]) == ("refused", ["why"], None)


# ---- the whole


def test_the_quick_check_is_asked_and_read(monkeypatch):
    asked, verdict = [], {}

    def check(name, **how):
        asked.append((name, how))
        return SimpleNamespace(failed_checks=lambda: ["causality", "extend"], **verdict)

    monkeypatch.setattr("attnzoo.checks.check", check)
    for failures, passed, refused, said in (
        ([1], False, [], ("incorrect", ["fails the quick check: causality, extend"])),
        ([], False, ["no device"], ("refused", ["no device"])),
        ([], False, [], ("refused", ["the quick check could try nothing"])),
        ([], True, [], ("ok", [])),
    ):
        verdict = {"failures": failures, "passed": passed, "refused": refused}
        assert benches.quick_check("sliding_window", "cpu", torch.bfloat16, {"window": 5}) == said
    how = {"device": "cpu", "dtype": torch.bfloat16, "quick": True, "shrink": False, "window": 5}
    assert asked == [("sliding_window", how)] * 4


def test_the_measured_size_is_checked_as_it_is_set(monkeypatch):
    asked = []

    def measured(attention, **how):
        asked.append((attention.n_heads, attention.n_kv_heads, attention.head_dim, attention.options, how))
        return results

    monkeypatch.setattr("attnzoo.checks.measured.measured_size", measured)
    passed = SimpleNamespace(status="passed", where="out", expected=1, actual=1, detail="")
    failed = SimpleNamespace(status="failed", where="out", expected=1, actual=2, detail="(row 3)")
    results = [passed]
    assert benches._measured("sliding_window", setting(), 64) == ("ok", [])
    how = {"batch": 3, "n_tokens": 64, "dtype": torch.float32, "device": "cpu", "training": True}
    [(*sizes, options, given)] = asked
    assert (sizes, options.window, given) == ([4, 2, 8], 5, how)
    results = [passed, failed]
    said = ["at 64 tokens it is not its definition: out: expected 1, got 2 (row 3)"]
    assert benches._measured("sliding_window", setting(), 64) == ("incorrect", said)
    asked.clear()
    benches._measured("flex", setting(n_kv_heads=None), 64)  # it has no backward on a CPU
    assert [how["training"] for *_, how in asked] == [False]
    asked.clear()
    monkeypatch.setattr(registry, "why_not", lambda *_, **__: ["so"])
    assert benches._measured("flex", setting(), 64) == ("ok", [])  # it is refused where it is built
    assert not asked


def test_what_backends_claim_by_work():
    kind = registry.get("sliding_window")
    can = kind.declared(registry.parse_options("sliding_window", {"window": 5}), "cpu")
    claims = benches._declared(["sliding_window", "exact", "sdpa"], setting())
    both = {
        (op, what) for op in ("forward", "forward+backward", "train_step", "prefill") for what in ("time", "memory")
    }
    assert {key[1:] for key in claims} == both | {("decode", "time")}
    assert {claims["sliding_window", op, "time"] for op, what in both} == {can.time}
    assert {claims["exact", op, "memory"] for op, what in both} == {2.0}
    assert {(claims["sdpa", op, "time"], claims["sdpa", op, "memory"]) for op, what in both} == {(2.0, 1.0)}
    assert (claims["exact", "decode", "time"], claims["sliding_window", "decode", "time"]) == (1.0, can.state)
