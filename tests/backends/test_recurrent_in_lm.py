"""The recurrent rules inside the language model: they train, decode in any split, and mind padding and documents."""

from __future__ import annotations

import math

import pytest
import torch

from attnzoo.model import build_model
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig
from attnzoo.training.config import RunConfig

OPTIONS = {
    "retention": {"chunk": 8},
    "gla": {"chunk": 8, "rank": 4},
    "mamba2": {"chunk": 8},
    "deltanet": {"chunk": 8},
    "gated_deltanet": {"chunk": 8},
    "kda": {"chunk": 8},
    "performer": {"chunk": 8},
    "based": {"chunk": 8, "feature_dim": 4, "window": 5},
}
# float32 sums in another order, through two layers of weights near 0.2
CLOSE = {"atol": 2e-4, "rtol": 2e-4}


def make(name, **settings):
    cfg = RunConfig(
        attention=AttentionConfig(name, OPTIONS[name]),
        positions=PositionsConfig("rope"),
        model=ModelConfig(**{"n_layers": 2, "d_model": 32, "n_heads": 4, "n_kv_heads": 2, "short_conv": 3} | settings),
    )
    return build_model(cfg, 50)


def shaken(name, **settings):
    """Every part of it matters to the output."""
    model = make(name, **settings).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("name", OPTIONS)
def test_decoding_in_any_split_equals_the_parallel_pass(name):
    model, tokens = shaken(name), torch.randint(50, (2, 23))
    with torch.no_grad():
        full = model(tokens)
        for split in ([1] * 23, [7, 1, 1, 9, 5], [20, 3]):
            cache, parts = model.new_cache(2, 23), []
            for part in tokens.split(split, 1):
                parts.append(model(part, cache=cache))
            torch.testing.assert_close(torch.cat(parts, 1), full, **CLOSE)


@pytest.mark.parametrize("name", OPTIONS)
def test_left_padding_and_packing_change_nothing(name):
    model, one, two = shaken(name), torch.randint(50, (2, 9)), torch.randint(50, (2, 14))
    real = torch.cat([torch.zeros(2, 9, dtype=torch.bool), torch.ones(2, 14, dtype=torch.bool)], 1)
    documents = torch.tensor([[3] * 9 + [1] * 14] * 2)
    with torch.no_grad():
        alone, both = model(two), torch.cat([one, two], 1)
        torch.testing.assert_close(model(both, key_padding=real)[:, 9:], alone, **CLOSE)
        torch.testing.assert_close(model(both, documents=documents)[:, 9:], alone, **CLOSE)


@pytest.mark.parametrize("name", OPTIONS)
def test_it_learns_to_copy(name):
    """Sequences that repeat a run of 4 tokens: after the first run, the next token is known from the past alone."""
    model, draw = make(name, n_kv_heads=None).train(), torch.Generator().manual_seed(0)
    optimiser, losses = torch.optim.AdamW(model.parameters(), lr=5e-3), []
    for _ in range(100):
        run = torch.randint(16, (16, 4), generator=draw)
        tokens = run.repeat(1, 6)
        loss = model.loss(model(tokens[:, :-1])[:, 4:].contiguous(), tokens[:, 5:].contiguous())
        optimiser.zero_grad()
        loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
        assert all(p.grad is not None for p in model.parameters())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
    print(name, [round(l, 2) for l in losses[::10]], round(losses[-1], 3))
    assert losses[-1] < math.log(4) + 0.3  # chance is ln 16 = 2.77; knowing which 4 tokens the sequence has gives ln 4
