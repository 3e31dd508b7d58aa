"""What is built is what the settings say: seed, vocabulary, dropout, positions, norms, initial values, recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import attnzoo
from attnzoo.errors import Refused
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig, head_dim_of
from attnzoo.positions import build_positions
from attnzoo.positions.relative import distance_buckets
from attnzoo.projections.mla import latent_sizes

SMALL = ModelConfig(n_layers=2, d_model=32, n_heads=4)


def built(positions: PositionsConfig = PositionsConfig(), seed: int = 0, attention: str = "sdpa", **settings):
    return assemble(replace(SMALL, **settings), AttentionConfig(attention, {}), positions, 50, seed)


def test_the_seed_alone_decides():
    torch.manual_seed(1)
    one, other = built(seed=3), built(seed=4)
    torch.manual_seed(2)
    again = built(seed=3)
    assert torch.equal(one.embedding.weight, again.embedding.weight)
    assert not torch.equal(one.embedding.weight, other.embedding.weight)
    assert one.recipe.seed == 3


def test_every_matrix_starts_as_the_table_says():
    sizes = ["model.n_layers=2", "model.d_model=256", "model.n_heads=4", "model.tie_embeddings=false"]
    parts = ["model.projection=mla", "model.output_gate=elementwise", "positions.name=learned"]
    model = attnzoo.build_model(attnzoo.compose("train", [*sizes, *parts]))
    fan_in = {"qkv": 256, "expand": 128, "gate": 256, "gate_up": 256, "out": 256, "down": 688}  # r = 2·D; 2.6875 · 256
    std = {kind: n**-0.5 for kind, n in fan_in.items()} | {"embedding": 0.02, "head": 0.02, "table": 0.02}
    std |= {kind: std[kind] / 2 for kind in ("out", "down")}  # sqrt(2 L)
    found = {name: p for name, p in model.named_parameters() if "norm" not in name}
    assert {name.split(".")[-2] for name in found} == set(std)
    for name, p in found.items():  # the std of n draws is off by 1/sqrt(2 n): 0.4 % for the smallest of 32,768
        assert p.std().item() == pytest.approx(std[name.split(".")[-2]], rel=0.02), name


@pytest.mark.parametrize("positions", ["rope", "learned"])
def test_dropout_falls_on_the_embeddings_and_on_what_each_sublayer_adds(positions):
    model, tokens = built(PositionsConfig(positions), dropout=0.5), torch.randint(50, (4, 9))
    block, seen = model.blocks[0], {}
    for part in ("attention_norm", "attention", "mlp_norm", "mlp"):
        block.get_submodule(part).register_forward_hook(
            lambda _, args, out, part=part: seen.update({part: (args[0], out)})
        )
    block.register_forward_hook(lambda _, args, out: seen.update(block=(args[0], out)))
    model.train()(tokens)
    h = model.embedding(tokens)
    if positions == "learned":
        h = h + model.positions.table(torch.arange(9))
    (start, end), middle = seen["block"], seen["mlp_norm"][0]
    for whole, kept in (
        (h, start),
        (seen["attention"][1], middle - start),
        (seen["mlp"][1], end - middle),
    ):
        dropped = (kept == 0).float().mean().item()
        assert dropped == pytest.approx(0.5, abs=0.1)  # of 1152: seven times sqrt(1/4/1152)
        torch.testing.assert_close(
            kept, torch.where(kept == 0, 0, 2 * whole), atol=1e-5, rtol=1e-5
        )  # differences of sums
    model.eval()(tokens)
    assert torch.equal(seen["block"][0], h)


def test_each_dropout_has_its_own_rate():
    model = built(dropout=0.5, attention_dropout=0.25)
    assert {attention.dropout for attention in model.attention_modules()} == {0.25}


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("projection", ["qkv", "mla"])
def test_every_norm_has_the_epsilon_given(kind, projection):
    model = built(norm=kind, norm_eps=0.5, projection=projection, head_norm=True)
    norms = [module for module in model.modules() if isinstance(module, nn.RMSNorm | nn.LayerNorm)]
    inner = {"qkv": 2, "mla": 3}[projection] + 1
    assert [norm.eps for norm in norms] == [0.5] * (2 * (2 + inner) + 1)
    x = torch.randn(3, 32)
    away = x - x.mean(1, keepdim=True) if kind == "layer" else x
    with torch.no_grad():
        torch.testing.assert_close(model.norm(x), away / (away.square().mean(1, keepdim=True) + 0.5).sqrt())


def test_the_positions_settings_reach_the_scheme():
    ids = torch.arange(9)[None]
    rope = built(PositionsConfig("rope", options={"base": 100.0})).positions
    assert torch.equal(
        rope.phases(ids)[0], build_positions("rope", d_model=16, n_heads=2, head_dim=8, base=100.0).phases(ids)[0]
    )
    h, waves = torch.zeros(1, 9, 32), built(PositionsConfig("sinusoidal", options={"base": 100.0})).positions
    assert torch.equal(
        waves.embed(h, ids), build_positions("sinusoidal", d_model=32, n_heads=2, head_dim=8, base=100.0).embed(h, ids)
    )
    assert built(PositionsConfig("learned", options={"max_tokens": 17})).positions.table.num_embeddings == 17
    relative = built(PositionsConfig("relative", options={"buckets": 8, "max_distance": 16})).positions.bias()
    assert torch.equal(relative.bucket, distance_buckets(8, 16))


def test_the_vocabulary_is_the_tasks_or_the_tokenizers():
    def size(*overrides: str) -> int:
        return attnzoo.build_model(attnzoo.compose("train", ["model=tiny", *overrides])).vocab_size

    assert size() == 256  # bytes
    assert size("data.tokenizer=bpe", "data.bpe_vocab=300") == 300
    assert size("task=recall", "task.n_symbols=40") == 40


def test_the_recipe_stays_what_was_built():
    settings, attention = replace(SMALL), AttentionConfig("sliding_window", {"window": 5})
    model = assemble(settings, attention, PositionsConfig(), 50, 0)
    settings.d_model, attention.options["window"] = 64, 7
    assert (model.recipe.model.d_model, model.recipe.attention.options) == (32, {"window": 5})


def test_a_cache_has_the_models_type():
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        model = built(short_conv=3).to(dtype)
        expected = sum(block.attention.cache_bytes(2, 9, dtype) for block in model.layers)
        assert model.new_cache(2, 9).nbytes == expected
        assert model.new_cache(2, 9).layers[0].conv.dtype == dtype


def test_sizes_that_are_left_out():
    assert built().blocks[0].mlp.down.in_features == 88  # 2.6875 · 32 = 86, up to a multiple of 8
    assert head_dim_of(replace(SMALL, head_dim=6)) == 6
    assert latent_sizes(SMALL, 8) == (16, 4)
    assert latent_sizes(SMALL, 10) == (20, 2)  # 5 is odd, 4 no divisor
    assert latent_sizes(SMALL, 5) == (10, 0)


@pytest.mark.parametrize("rope_dim", [3, 8, 12])  # odd, no divisor, all of the head
def test_latent_attention_turns_an_even_part_of_the_head(rope_dim):
    with pytest.raises(Refused, match=f"rope_dim={rope_dim}: must be even and a true divisor of the head dim 12"):
        built(projection="mla", head_dim=12, rope_dim=rope_dim)
    assert built(projection="mla", head_dim=12, rope_dim=4, n_kv_heads=4).layers[0].attention.projection.turned == 4
