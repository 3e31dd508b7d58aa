import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnzoo.measure.config import MeasureConfig
from attnzoo.measure.cost import BACKWARD_PASSES, model_costs, new_cache, time_models, train_step_flops
from attnzoo.measure.failures import failed_timings, failure_lines
from attnzoo.measure.step import TrainStep
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig

SIZES = {"n_layers": 2, "d_model": 32, "n_heads": 4}


def model(name: str, positions: str = "rope", options: dict | None = None, **sizes):
    return assemble(
        ModelConfig(**SIZES | sizes), AttentionConfig(name, options or {}), PositionsConfig(positions), 48, 0
    )


def test_flops_equal_torchs_count_where_torch_counts_right():
    # `exact` multiplies whole matrices, so torch counts all T² pairs where the formula counts the visible T (T + 1) / 2
    lm, batch, n_tokens = model("exact"), 2, 24
    step = TrainStep(lm, batch, n_tokens)
    with FlopCounterMode(display=False) as counter:
        step()
    hidden = 4.0 * 32 * n_tokens * (n_tokens - 1) / 2 * SIZES["n_layers"] * batch * (1 + BACKWARD_PASSES)
    # and each norm sums its gain's gradient over the rows by a product: five of width C, and q's and k's in each layer
    norms = 2.0 * batch * n_tokens * (5 + 2 * SIZES["n_layers"]) * 32
    assert counter.get_total_flops() == train_step_flops(lm, batch, n_tokens) + hidden + norms


def test_costs_without_a_clock():
    for name, options in (("sdpa", {}), ("gqa", {}), ("sliding_window", {"window": 8}), ("linear", {})):
        costs = model_costs(model(name, options=options, short_conv=4), batch_size=2, n_tokens=16, context=32)
        assert costs["cache_bytes"] == costs["cache_bytes_formula"] > 0
        assert costs["parameters"] > 0
    assert (
        model_costs(model("gqa"), batch_size=1, n_tokens=8, context=32)["cache_bytes"] * 4
        == (model_costs(model("sdpa"), batch_size=1, n_tokens=8, context=32)["cache_bytes"])
    )


def test_timing_models_leaves_their_weights_and_keeps_failures_as_rows():
    models = {"sdpa": model("sdpa"), "linear": model("linear"), "broken": model("sdpa", "learned")}
    models["broken"].blocks[0].mlp.forward = lambda x: (_ for _ in ()).throw(RuntimeError("planted"))
    before = {name: p.clone() for name, p in models["sdpa"].state_dict().items()}
    measure = MeasureConfig(rounds=2, seconds=5.0, decode_context=8, decode_tokens=4)
    found = time_models(models, task_shape=(2, 16), measure=measure, baseline="sdpa")
    assert set(found) == set(models)
    for stage in ("train_step_ms", "prefill_ms", "decode_ms_per_token"):
        assert found["linear"][stage]["ratio"]["to"] == "sdpa"
        assert found["sdpa"][stage]["median"] > 0
        assert found["broken"][stage]["status"] == "failed"
        assert "planted" in found["broken"][stage]["reasons"][0]
    assert found["sdpa"]["train_tokens_per_s"] == pytest.approx(32 / found["sdpa"]["train_step_ms"]["median"] * 1000)
    assert found["broken"]["train_tokens_per_s"] is None
    for name, p in models["sdpa"].state_dict().items():
        assert torch.equal(p, before[name])


@pytest.mark.parametrize("sizes", [{}, {"short_conv": 3}, {"projection": "mla"}], ids=str)
def test_bf16_is_timed_from_a_bf16_cache(sizes):
    measure = MeasureConfig(rounds=1, decode_context=4, decode_tokens=2)
    lm = model("sdpa", n_layers=1, **sizes)
    found = time_models({"sdpa": lm}, task_shape=(1, 8), measure=measure, precision="bf16")
    for stage in ("train_step_ms", "prefill_ms", "decode_ms_per_token"):
        assert found["sdpa"][stage]["median"] is not None, found["sdpa"][stage]
    assert new_cache(lm, 1, 4, "bf16").nbytes * 2 == new_cache(lm, 1, 4, "fp32").nbytes


def test_what_has_no_number_has_its_reason():
    cost = {
        "parameters": 3,
        "train_step_ms": {"median": 1.0},
        "prefill_ms": {"median": None, "status": "failed", "reasons": ["a", "b"]},
        "train_memory": {"status": "oom"},
    }
    assert failed_timings(cost) == {"prefill_ms": "a; b", "train_memory": "no reason recorded"}
    assert failure_lines(cost)[0] == "not timed: prefill_ms: a; b"
