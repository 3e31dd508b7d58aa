"""What every race holds against what: its lines, its shape and the work of its contestants, with nothing timed."""

from __future__ import annotations

import pytest
import torch

from attnzoo.errors import RequestError
from attnzoo.measure import peers
from attnzoo.measure.peers import (
    FULL,
    QUICK,
    RACES,
    bench_peers,
    check_races,
    decoding,
    lucidrains,
    operators,
    race,
    training,
)
from attnzoo.measure.peers.race import Race
from attnzoo.model.config import ModelConfig

PRODUCTS, FLASH = "products and softmax alone", "products and flash alone"
CACHES = ("Hugging Face, dynamic cache", "Hugging Face, static cache")
COMPILED = "Hugging Face, static cache, compiled"
EXACT = "linear-attention-transformer, bucket 1"

# race: (ours, peers, times as fast at least, quantity, limit) of each of its lines
LINES = {
    "train": [
        ("ours", ("plain loop",), 1.0, "time", FLASH),
        ("ours, no QK-norm", ("Hugging Face Llama",), 1.15, "time", FLASH),
        ("ours, no QK-norm", ("x-transformers",), None, "time", None),
    ],
    "bf16": [("bf16", ("fp32",), 1.3, "time", None)],
    "window": [
        ("sliding_window", ("local-attention",), 1.5, "time", None),
        ("sliding_window", ("SDPA, dense mask",), 10.0, "time", None),
    ],
    "linear": [("linear", ("sdpa",), 8.0, "time", None), ("linear", (EXACT,), 30.0, "time", None)],
    "block_sparse": [("block_sparse", ("sdpa",), 5.0, "time", None)],
    "decode": [
        ("ours, compiled", CACHES, 2.0, "time", PRODUCTS),
        ("ours", CACHES, None, "time", PRODUCTS),
        ("ours, compiled", (COMPILED,), None, "time", PRODUCTS),
        ("reading alone", CACHES, None, "time", None),
    ] * 2,
    "flat": [("context 64", ("context 32",), 1 / 1.1, quantity, None) for quantity in ("time", "state_bytes")] * 2,
    "gqa": [
        ("G = 1", ("G = 8",), 2.0, "time", f"G = 1, {PRODUCTS}"),
        (f"G = 1, {PRODUCTS}", (f"G = 8, {PRODUCTS}",), None, "time", None),
        ("G = 1", ("G = 8",), 8.0, "state_bytes", None),
    ] * 3,
}  # fmt: skip
# race: (work, T, B, H, G, D, the backends it needs) of each of its parts
PARTS = {
    "train": [("train step, tiny, B 2, T 32", 32, 2, 8, 8, 8, ("sdpa",))],
    "bf16": [("train step under bf16 autocast, tiny", 32, 2, 8, 8, 8, ("sdpa",))],
    "window": [("sliding_window W 16, T 256, forward + backward", 256, 1, 2, 2, 16, ("sliding_window",))] * 2,
    "linear": [
        ("linear, T 256, forward + backward", 256, 1, 2, 2, 16, names) for names in (("linear", "sdpa"), ("linear",))
    ],
    "block_sparse": [
        (
            "block_sparse, 0.176 of the causal blocks (0.154 of the pairs), T 256, forward + backward",
            256, 1, 2, 2, 16, ("block_sparse", "sdpa"),
        )
    ],
    "decode": [(f"generate at context 32, batch {n}", 32, n, 8, 8, 8, ("sdpa",)) for n in (1, 2)],
    "flat": [
        (f"decode with {name}, context 64 against 32", 64, 1, 8, 8, 8, (name,)) for name in ("sliding_window", "linear")
    ],
    "gqa": [
        (f"decode with G 1 against G 8, context 64, {what}", 64, n, 8, 1, 8, ("gqa",))
        for what, n in (("attention alone", 1), ("batch 1", 1), ("batch 2", 2))
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def races() -> dict[str, list[Race]]:
    return {name: list(make(QUICK, 0)) for name, make in RACES.items()}


@pytest.mark.parametrize("name", RACES)
def test_every_line_has_its_sides_its_bar_and_its_limit(races, name):
    lines = [(bar.ours, bar.peers, bar.factor, bar.quantity, bar.limit) for part in races[name] for bar in part.bars]
    assert lines == LINES[name]
    sizes = ("T", "B", "H", "G", "D")
    parts = [(part.work, *(part.shape[size] for size in sizes), part.backends) for part in races[name]]
    assert parts == PARTS[name]
    for part in races[name]:
        assert part.shape["dtype"] == "float32"
        named = {n for bar in part.bars for n in (bar.ours, *bar.peers, bar.limit) if n}
        assert named == set(part.entries)


def test_the_sizes_that_the_bars_speak_of():
    large = ModelConfig(n_layers=6, d_model=384, n_heads=8)
    assert (FULL.n_tokens, FULL.n_heads, FULL.head_dim, FULL.window, FULL.block) == (8192, 4, 64, 128, 128)
    assert FULL.models == (("default model, 3 M", ModelConfig()), ("10 M", large))
    assert (FULL.batch_size, FULL.train_tokens) == (8, 256)
    assert (FULL.decoder, FULL.decode_batches, FULL.decode_context) == (large, ((1, 32), (16, 4)), 4096)
    assert (FULL.flat_model, FULL.flat_contexts, FULL.flat_window) == (ModelConfig(), (1024, 4096, 16384), 256)
    [sparse] = operators.block_sparse_races(
        FULL, 0
    )  # 4 of the 64 blocks of a late row: 1 + 2 + 3 + 61 * 4 of 64 * 65 / 2
    assert "0.120 of the causal blocks" in sparse.work
    assert (FULL.grouped_context, FULL.grouped_batches, FULL.new_tokens) == (8192, ((1, 32), (16, 8)), 32)


def calls_of(run, module) -> list[tuple[tuple[int, ...], int]]:
    """(shape, tokens in the cache before) of each call of a model."""
    seen = []

    def see(_, args, named):
        seen.append((tuple(args[0].shape), named["cache"].length))

    hook = module.register_forward_pre_hook(see, with_kwargs=True)
    try:
        run()
    finally:
        hook.remove()
    return seen


@pytest.mark.parametrize("context", [32, 64])
def test_a_flat_contestant_decodes_around_its_own_context(races, monkeypatch, context):
    asked = []
    monkeypatch.setattr(decoding, "decode_contestant", lambda *given: asked.append(given) or "contestant")
    for part, name in zip(races["flat"], ("sliding_window", "linear"), strict=True):
        entry = part.entries[f"context {context}"]()
        [(ours, *given)] = asked
        asked.clear()
        assert given == [1, context, QUICK.new_tokens, "fp32"]
        attn = ours.layers[0].attention.attention
        assert (attn.name, getattr(attn.options, "window", None)) == (name, 16 if name == "sliding_window" else None)
        assert (entry.contestant, entry.state_bytes) == (
            "contestant",
            ours.new_cache(1, context + QUICK.new_tokens).nbytes,
        )
        assert entry.kernel() == ours.kernel


def test_grouped_contestants_decode_from_the_same_place_in_every_call(races):
    context = QUICK.grouped_context
    _, one, rows = races["gqa"]
    for part, batch, new in ((one, *QUICK.grouped_batches[0]), (rows, *QUICK.grouped_batches[1])):
        for g in (1, 8):
            entry = part.entries[f"G = {g}"]()
            ours = entry.kernel.__closure__[0].cell_contents
            assert ours.layers[0].attention.attention.n_kv_heads == g
            for _ in range(2):
                entry.contestant.prepare()
                assert calls_of(entry.contestant.run, ours) == [((batch, 1), context + n) for n in range(new)]
            assert entry.contestant.units == part.entries[f"G = {g}, {PRODUCTS}"]().contestant.units == new
            # keys and values of both layers, for the context, the token that is read first and those that are decoded
            assert entry.state_bytes == 2 * 2 * batch * g * (context + 1 + new) * 8 * 4


def test_the_attention_alone_is_a_token_after_the_other(races):
    context, new = QUICK.grouped_context, QUICK.new_tokens
    for g in (1, 8):
        entry, limit = decoding._attention_alone(QUICK.flat_model, context, new, g)
        held = {type(c.cell_contents).__name__: c.cell_contents for c in entry.contestant.prepare.__closure__}
        [cache] = [value for value in held.values() if hasattr(value, "keys")]
        attn = entry.kernel.__closure__[0].cell_contents
        for _ in range(2):
            entry.contestant.prepare()
            assert cache.length == context
            entry.contestant.run()
            assert cache.length == context + new
        assert (entry.contestant.units, limit.contestant.units, attn.n_kv_heads) == (new, new, g)
        assert entry.state_bytes == 2 * g * (context + new) * 8 * 4
        assert entry.kernel() == attn.kernel


def test_a_training_contestant_is_of_its_model_and_sizes(monkeypatch):
    made = []
    monkeypatch.setattr(training, "train_contestant", lambda *given: made.append(given) or "contestant")
    monkeypatch.setattr(training.limits, "train_products", lambda *given: made.append(given))
    [part] = training.train_races(QUICK, 3)
    for name in ("ours", "ours, no QK-norm", FLASH):
        part.entries[name]()
    (ours, *sizes), (bare, *bare_sizes), (limit, *limit_sizes) = made
    assert sizes == bare_sizes == [2, 32, "fp32"]
    assert limit_sizes == [2, 32]
    assert limit is bare
    assert (ours.cfg.qk_norm, bare.cfg.qk_norm, bare.cfg.norm_eps) == (True, False, 1e-12)
    assert part.entries["ours"]().kernel() == ours.kernel
    of_seed = training.model(QUICK.models[0][1], 3).embedding.weight
    assert torch.equal(ours.embedding.weight, of_seed)


@pytest.mark.parametrize("units", [None, "AMX"])
def test_bf16_is_a_step_where_a_cpu_multiplies_it_and_else_a_product(monkeypatch, units):
    monkeypatch.setattr(training, "fast_bf16_on_cpu", lambda: units)
    made = []
    monkeypatch.setattr(training, "train_contestant", lambda *given: made.append(given[1:]))
    [part] = training.bf16_races(QUICK, 0)
    entries = {name: make() for name, make in part.entries.items()}
    assert list(entries) == ["bf16", "fp32"]
    if units:
        assert made == [(2, 32, "bf16"), (2, 32, "fp32")]
        assert part.bars[0].unreachable is None
    else:
        assert [entry.contestant.run().dtype for entry in entries.values()] == [torch.bfloat16, torch.float32]
        assert entries["fp32"].contestant.run().shape == (256, 256)
        assert "neither AMX nor AVX512-BF16" in part.bars[0].unreachable


def test_a_peer_is_held_to_ours_in_output_and_gradients(monkeypatch):
    """At the compared length, and before it is timed."""
    ours = operators._build("sliding_window", QUICK, window=QUICK.window)

    def wrong(part):
        def call(q, k, v):
            out = ours(q, k, v)
            return out * (1 + 1e-2 * (part == "out")) + 0 * q if part == "out" else _Grad.apply(out, q, k, v, part)

        return call

    class _Grad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, out, q, k, v, part):
            ctx.part = part
            return out.clone()

        @staticmethod
        def backward(ctx, gradient):
            more = [torch.full_like(gradient, 0.1) if name == ctx.part else None for name in ("dq", "dk", "dv")]
            return gradient, *more, None

    operators._expect_same_operator(lambda q, k, v: ours(q, k, v), ours, QUICK, 0)
    for part in ("out", "dq", "dk", "dv"):
        with pytest.raises(race.Differs, match="something else") as error:
            operators._expect_same_operator(wrong(part), ours, QUICK, 0)
        assert {"out": "the output"}.get(part, part) in error.value.reasons[0]
    timed = []
    monkeypatch.setattr(operators, "_expect_same_operator", lambda *given: timed.append(given[0]))
    monkeypatch.setattr(lucidrains, "local_attention", lambda window: timed.append(window) or ours)
    first, second = operators.window_races(QUICK, 0)
    first.entries["local-attention"]()
    assert timed == [QUICK.window, ours]
    dense = second.entries["SDPA, dense mask"]()
    assert len(timed) == 3
    q, k, v, _ = operators._inputs(QUICK, 40, 0)
    torch.testing.assert_close(timed[2](q, k, v), ours(q, k, v), rtol=0, atol=1e-5)
    assert dense.kernel() is None
    own = first.entries["sliding_window"]()
    own.contestant.run()
    assert own.kernel() == ours.kernel


def test_inputs_follow_the_seed_and_want_gradients():
    q, k, v, gradient = operators._inputs(QUICK, 40, 0)
    assert [t.requires_grad for t in (q, k, v, gradient)] == [True, True, True, False]
    assert {tuple(t.shape) for t in (q, k, v, gradient)} == {(1, 2, 40, 16)}
    assert torch.equal(q, operators._inputs(QUICK, 40, 0)[0])
    assert not torch.equal(q, operators._inputs(QUICK, 40, 1)[0])
    assert not torch.equal(q, k)


def test_what_a_race_costs_beyond_its_second_call_and_that_it_must_give_the_same():
    class Late:
        prepared, calls = 0, 0

        def prepare(self):
            self.prepared += 1

        def run(self):
            self.calls += 1
            return torch.tensor([[1, 2 + (self.calls == self.wrong)]])

    for wrong in (0, 1, 2):
        late = Late()
        late.wrong = wrong
        if wrong:
            with pytest.raises(race.Differs, match="something else"):
                decoding._compared(late, torch.tensor([[1, 2]]))
        else:
            decoding._compared(late, torch.tensor([[1, 2]]))
            assert (late.prepared, late.calls) == (2, 2)


def test_the_bench_runs_each_race_once_checked_and_names_it(monkeypatch):
    ran, asked = [], []

    def run(part, **how):
        ran.append((part.work, how))
        return [{"op": part.work}], [{"work": part.work}]

    def verify(name, device, dtype, options):
        asked.append((name, device, dtype, options))
        return "ok", []

    monkeypatch.setattr(peers, "run", run)
    monkeypatch.setattr(peers, "machine_rates", lambda *_: {"matmul_flops_per_s": 1.0, "copy_bytes_per_s": 1.0})
    found = bench_peers(["linear", "window"], quick=True, seconds=3.0, seed=5, verify=verify)
    assert {str(how) for _, how in ran} == {str({"seconds": 3.0, "seed": 5})}
    assert asked == [(name, "cpu", torch.float32, {}) for name in ("linear", "sdpa", "sliding_window")]
    assert [bar["race"] for bar in found["bars"]] == ["linear"] * 2 + ["window"] * 2
    assert found["growth"] == []
    assert found["machine"]["device"] == "cpu"
    faulty = bench_peers(["linear"], quick=True, verify=lambda name, *_: ("incorrect", [f"{name} is wrong"]))
    assert [row["reasons"] for row in faulty["rows"]] == [["linear is wrong", "sdpa is wrong"]] * 2 + [
        ["linear is wrong"]
    ] * 2
    assert {row["status"] for row in faulty["rows"]} == {"incorrect"}


def test_races_that_an_older_result_lacks_are_seen_before():
    check_races(["flat"], {"bars": [{"race": "flat"}, {"race": "gqa"}]})
    check_races([], {"bars": [{"race": "flat"}]})
    check_races(["flat"])
    with pytest.raises(RequestError) as error:
        check_races(["flat", "train"], {"bars": [{"race": "gqa"}, {"race": "decode"}, {}]})
    assert error.value.reasons == ["races: here flat, train, there decode, gqa"]
    with pytest.raises(RequestError, match="no line in common"):
        check_races(["flat"], {"bars": []})
    with pytest.raises(RequestError, match="did you mean 'flat'"):
        check_races(["flt"])
