"""Small models whose every part matters to the output."""

from __future__ import annotations

import pytest
import torch

from attnzoo.model import build_model
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig
from attnzoo.training.config import RunConfig

SMALL = {
    "sliding_window": {"window": 5},
    "block_sparse": {"block": 4, "window": 1},
    "linear": {"chunk": 8},
}


@pytest.fixture
def make_model():
    """(attention name, positions, model settings) -> a model with large random weights, in evaluation mode."""

    def make(name="sdpa", positions="rope", vocab_size=50, **settings):
        model = ModelConfig(**{"n_layers": 2, "d_model": 32, "n_heads": 4} | settings)
        cfg = RunConfig(
            attention=AttentionConfig(name, SMALL.get(name, {})),
            positions=PositionsConfig(positions),
            model=model,
        )
        built = build_model(cfg, vocab_size).eval()
        with torch.no_grad():
            for parameter in built.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        return built

    return make
