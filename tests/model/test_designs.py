"""Whole designs, conf/model/*.yaml: each builds, takes a training step, and decodes what the parallel pass reads."""

from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo import groups
from attnzoo.model import build_model
from attnzoo.model.lm import CausalLM
from attnzoo.training.optim import build_optimizer

LAYERS = {
    "gpt2": ["sdpa"] * 4,
    "llama": ["gqa"] * 4,
    "gemma": ["sliding_window"] * 5 + ["sdpa"],
    "mistral": ["sliding_window"] * 4,
    "gpt_oss": ["sink_logit"] * 4,
    "based": ["based", "sliding_window"] * 2,
    "retnet": ["retention"] * 4,
    "hybrid": ["gated_deltanet"] * 3 + ["sdpa"],
}
SIZES = {"base", "demo", "small", "tiny"}


def test_every_preset_is_known_here():
    assert set(groups.presets("model")) == SIZES | set(LAYERS)


@pytest.mark.parametrize("name", LAYERS)
def test_a_design_builds_trains_and_decodes(name):
    cfg = attnzoo.compose("train", [f"model={name}", "model.d_model=64"])
    model, tokens = build_model(cfg, 50), torch.randint(50, (2, 81))
    assert [attention.name for attention in model.attention_modules()] == LAYERS[name]
    before = [parameter.clone() for parameter in model.parameters()]
    loss = CausalLM.loss(model(tokens[:, :-1]), tokens[:, 1:])
    loss.backward()
    build_optimizer(model, cfg.trainer).step()
    assert loss.isfinite()
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    model.eval()
    with torch.no_grad():
        cache = model.new_cache(2, 80)
        parts = [model(part, cache=cache) for part in tokens[:, :-1].split([37, 1, 1, 40, 1], 1)]
        # float32 sums in another order through up to six layers
        torch.testing.assert_close(torch.cat(parts, 1), model(tokens[:, :-1]), atol=2e-4, rtol=2e-4)


def test_a_backend_in_place_of_a_designs_own():
    assert attnzoo.compose("train", ["model=llama", "attention=linear"]).attention.name == "linear"
    cfg = attnzoo.compose("compare", ["model=retnet", "backends=[retention,sdpa]"])
    assert (cfg.model.head_norm, cfg.positions.name) == (True, "rope")
