"""positions=auto: each layer gets what its backend is published with, and what the delta rules promise holds in a model."""

from __future__ import annotations

import json

import pytest
import torch

import attnzoo
from attnzoo import registry
from attnzoo.capabilities import Capabilities
from attnzoo.errors import RequestError
from attnzoo.model import build_model
from attnzoo.model.build import layer_positions
from attnzoo.model.export import export, load
from attnzoo.training.config import RunConfig

UNTURNED = {"gla", "mamba2", "deltanet", "gated_deltanet", "kda", "forgetting"}
"""Their publications have no positions beside the rule: arXiv:2312.06635, 2405.21060, 2406.06484, 2412.06464, 2510.26692,
2503.02130."""
SIZES = {"model.d_model": "32", "model.n_heads": "2", "model.n_layers": "2", "model.qk_norm": "false"}
DISTANCE = 80


def composed(*overrides: str) -> RunConfig:
    settings = SIZES | dict(override.split("=", 1) for override in overrides)
    return attnzoo.compose("train", [f"{key}={value}" for key, value in settings.items()])


def heads_of(model, tokens) -> list[dict[str, torch.Tensor]]:
    """q, k, v and x that the attention of each layer is called with."""
    found = []

    def keep(module, arguments):
        q, k, v, _, _, x = arguments
        found.append({"q": q, "k": k, "v": v, "x": x})

    hooks = [attention.register_forward_pre_hook(keep) for attention in model.attention_modules()]
    with torch.no_grad():
        model(tokens)
    for hook in hooks:
        hook.remove()
    return found


def repeated(vocab_size=50) -> torch.Tensor:
    """Tokens of which the last is the first, ``DISTANCE`` later."""
    tokens = torch.randint(vocab_size, (1, DISTANCE + 1))
    tokens[:, -1] = tokens[:, 0]
    return tokens


def test_who_goes_without_positions():
    shipped = [name for name in registry.list_backends() if registry.origin(name) == "attnzoo"]
    assert {name for name in shipped if registry.get(name).capabilities.positions == "none"} == UNTURNED


@pytest.mark.parametrize("name", ["deltanet", "gated_deltanet"])
def test_in_a_model_an_old_value_is_replaced_under_the_same_key(name):
    """Written at 0, written again halfway, read at the end with the key as query: nothing of the first value is left.
    With rope the three keys are three others (deltanet reads 0.3 of the first value and 0.4 of the second, say)."""
    replaced, turned = (
        read_back(build_model(composed(f"attention={name}", f"positions={p}"), 50)) for p in ("auto", "rope")
    )
    # a key has length 1 but for ε = 1e-6 beside its squared length near 16; rounding of float32 keys is 1e-7
    torch.testing.assert_close(replaced[:, 0], torch.zeros(2).double(), atol=1e-6, rtol=0)
    if name == "deltanet":
        torch.testing.assert_close(replaced[:, 1], torch.ones(2).double(), atol=1e-6, rtol=0)
    assert turned[:, 0].abs().min() > 100 * replaced[:, 0].abs().max()


def read_back(model) -> torch.Tensor:
    """(H, 2): what the first layer reads at the end of two values that it wrote whole under one key, and nothing else."""
    layer, half = model.layers[0].attention, DISTANCE // 2
    with torch.no_grad():
        width = layer.attention.n_heads * layer.attention.head_dim
        layer.projection.qkv.weight[:width] = layer.projection.qkv.weight[width : 2 * width]
    strength = torch.zeros(1, layer.attention.n_heads, DISTANCE + 1, dtype=torch.float64)
    strength[..., [0, half]] = 1.0
    layer.attention.write_strength = lambda x: strength.to(x.dtype)
    tokens = repeated()
    tokens[:, half] = tokens[:, 0]
    _, weights = layer.attention.reference(**heads_of(model, tokens)[0])
    return weights[0, :, -1, [0, half]]


@pytest.mark.parametrize("name", sorted(UNTURNED | {"sdpa", "sliding_window", "retention", "linear", "mla"}))
def test_one_token_has_one_key_where_nothing_is_turned(name):
    model, tokens = build_model(composed(f"attention={name}"), 50), repeated()
    keys = heads_of(model, tokens)[0]["k"]
    assert torch.allclose(keys[:, :, 0], keys[:, :, -1], atol=1e-5) is (name in UNTURNED)


def test_in_a_hybrid_by_layer_and_in_its_name():
    cfg = composed("model.attention_pattern=[gla,gla,gla,sdpa]", "model.n_layers=4")
    assert [each.name for each in layer_positions(cfg.model, cfg.attention, cfg.positions)] == [
        "none",
        "none",
        "none",
        "rope",
    ]
    model = build_model(cfg, 50)
    with torch.no_grad():
        for block in model.layers:  # nothing but the embedding reaches the next layer, so each sees one token twice
            block.attention.out.weight.zero_()
            block.mlp.down.weight.zero_()
    same = [torch.allclose(t["k"][:, :, 0], t["k"][:, :, -1], atol=1e-5) for t in heads_of(model, repeated())]
    assert same == [True, True, True, False]


@pytest.mark.parametrize("pattern", [["gla"], ["sdpa"], ["gla", "sdpa"]])
def test_a_saved_model_has_the_same_positions(tmp_path, pattern):
    cfg = composed(f"model.attention_pattern=[{','.join(pattern)}]")
    model, tokens = build_model(cfg, 50).eval(), repeated()
    export(model, tmp_path / "out")
    stated = json.loads((tmp_path / "out" / "config.json").read_text())["positions"]["name"]
    assert stated == {("gla",): "none", ("sdpa",): "rope"}.get(tuple(pattern), "auto")
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "out")(tokens), model(tokens))


@pytest.mark.parametrize(
    ("overrides", "stated"),
    [
        (["attention=gla"], "none"),
        (["attention=sdpa"], "rope"),
        (["attention=gla", "positions=rope"], "rope"),
        (["attention=sdpa", "positions=none"], "none"),
        (["attention=sdpa", "positions=alibi"], "alibi"),
        (["model.attention_pattern=[gla,gla,sdpa]", "model.n_layers=3"], "2xnone+rope"),
    ],
)
def test_the_record_says_what_it_came_to(overrides, stated):
    from attnzoo.training.run import new_record

    assert new_record(composed(*overrides), "cpu", "fp32", "").positions == stated


def test_an_odd_head_dim_is_refused_before_anything_starts_unless_nothing_turns():
    odd = ["model.d_model=30", "model.n_heads=2", "attention=gla"]
    with pytest.raises(RequestError, match="head dim 15 of model must be even; positions=none takes any"):
        composed(*odd)
    assert composed(*odd, "positions=none").positions.name == "none"


def test_a_backend_declares_one_of_two():
    with pytest.raises(RequestError, match="unknown positions 'alibi'; valid: none, rope"):
        Capabilities(positions="alibi")
