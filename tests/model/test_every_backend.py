"""Every backend in the language model: it learns, decodes as it reads, and packs and pads as it says."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import attnzoo
from attnzoo import registry
from attnzoo.checks.subject import Subject
from attnzoo.model import build_model
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig
from attnzoo.model.lm import CausalLM
from attnzoo.training.config import RunConfig

NAMES = [name for name in attnzoo.list_backends() if not attnzoo.why_not(name, n_heads=4, head_dim=8)]
# float32 sums in another order, through two layers: far below any of the differences a bug makes (> 0.1)
CLOSE = {"atol": 2e-4, "rtol": 2e-4}


def make(name, positions="none", shake=0.1, **settings):
    """Two small layers; blocks, chunks and windows cut down so that a short text crosses their edges."""
    model = ModelConfig(n_layers=2, d_model=32, n_heads=4, **settings)
    cfg = RunConfig(
        attention=AttentionConfig(name, dataclasses.asdict(Subject.of(name).small)),
        positions=PositionsConfig(positions),
        model=model,
    )
    built = build_model(cfg, 50).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn_like(parameter) * shake)
    return built


@pytest.mark.parametrize("positions", ["none", "rope", "alibi", "relative"])
@pytest.mark.parametrize("name", NAMES)
def test_decoding_in_any_split_equals_the_parallel_pass(name, positions):
    if positions in ("alibi", "relative") and not registry.get(name).capabilities.bias:
        pytest.skip("it takes no score bias, and says so")
    model = make(name, positions, short_conv=4)
    tokens = torch.randint(50, (2, 23))
    with torch.no_grad():
        full = model(tokens)
        for split in ([1] * 23, [7, 1, 1, 9, 5], [20, 3]):
            cache = model.new_cache(2, 23)
            parts = [model(part, cache=cache) for part in tokens.split(split, 1)]
            torch.testing.assert_close(torch.cat(parts, 1), full, **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_a_few_steps_learn_a_repeated_text(name):
    if attnzoo.why_not(name, n_heads=4, head_dim=8, training=True):
        pytest.skip("it has no backward here")
    model = make(name, shake=0.0).train()
    text = torch.randint(50, (4, 33), generator=torch.Generator().manual_seed(1))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        loss = CausalLM.loss(model(text[:, :-1]), text[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    reached = {n for n, p in model.named_parameters() if p.grad is not None and torch.isfinite(p.grad).all()}
    assert reached == {n for n, _ in model.named_parameters()}
    assert losses[-1] < losses[0] - 1.0, losses  # from ln 50 = 3.9; 128 pairs of tokens are quickly known


@pytest.mark.parametrize("name", [n for n in NAMES if registry.get(n).capabilities.bias])
def test_a_learned_bias_gets_the_gradient_of_the_definition(name):
    if attnzoo.why_not(name, n_heads=4, head_dim=8, bias=True, bias_gradient=True):
        pytest.skip("it has no gradient for a bias here, and says so")
    model, tokens = make(name, "relative").double(), torch.randint(50, (2, 23))
    attention, scheme = model.attention_modules()[0], model.positions
    x = torch.randn(2, 23, 32, dtype=torch.float64)
    q, k, v = model.blocks[0].attention.projection(x, attnzoo.Mask(), None)
    out = attention(q, k, v, bias=scheme.bias(), x=x)
    defined, _ = attention.define(q, k, v, bias=scheme.bias(), x=x)
    weights, table = torch.randn_like(out), scheme.score_bias.table
    (found,) = torch.autograd.grad((out * weights).sum(), table, retain_graph=True)
    (expected,) = torch.autograd.grad((defined * weights).sum(), table)
    assert expected.abs().sum() > 0
    # float64: each entry sums a few hundred terms of size 1
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-8)
    model(tokens).sum().backward()
    assert table.grad.abs().sum() > 0


@pytest.mark.parametrize("name", [n for n in NAMES if "documents" in registry.get(n).capabilities.masks])
def test_packed_documents_are_as_if_alone(name):
    if not registry.get(name).capabilities.shift_invariant:
        pytest.skip("its pattern counts from the first slot, and says so")
    model = make(name, short_conv=4)
    one, two = torch.randint(50, (2, 9)), torch.randint(50, (2, 14))
    documents = torch.tensor([[3] * 9 + [1] * 14] * 2)
    with torch.no_grad():
        packed = model(torch.cat([one, two], 1), documents=documents)
        torch.testing.assert_close(packed[:, :9], model(one), **CLOSE)
        torch.testing.assert_close(packed[:, 9:], model(two), **CLOSE)
