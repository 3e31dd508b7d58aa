"""The model: cached and parallel passes agree, padding and packing change nothing, sizes are as stated."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import attnzoo
from attnzoo.errors import Refused, RequestError
from attnzoo.masks import Mask
from attnzoo.model.lm import CausalLM, position_ids
from attnzoo.shapes import IGNORE

TRAINABLE_HERE = ["exact", "sdpa", "gqa", "mqa", "sliding_window", "block_sparse", "linear"]
# float32 sums in another order, through two layers of weights near 0.2: far below any of the differences a bug makes (> 0.1)
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rope", "alibi", "relative"])
@pytest.mark.parametrize("name", [*TRAINABLE_HERE, "flex"])
def test_decoding_in_any_split_equals_the_parallel_pass(make_model, name, positions):
    if name == "linear" and positions in ("alibi", "relative"):
        with pytest.raises(Refused, match="no scores to add a bias"):
            make_model(name, positions)
        return
    model = make_model(name, positions, short_conv=4)
    tokens = torch.randint(50, (2, 23))
    with torch.no_grad():
        full = model(tokens)
        for split in ([1] * 23, [7, 1, 1, 9, 5], [20, 3]):
            cache, parts = model.new_cache(2, 23), []
            for part in tokens.split(split, 1):
                parts.append(model(part, cache=cache))
            assert cache.length == 23
            torch.testing.assert_close(torch.cat(parts, 1), full, **CLOSE)


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rope", "alibi", "relative"])
@pytest.mark.parametrize("conv", [0, 4])
def test_left_padding_changes_nothing(make_model, positions, conv):
    """transformers #18388."""
    model = make_model("sdpa", positions, short_conv=conv)
    tokens, pads = torch.randint(50, (2, 20)), torch.randint(50, (2, 9))
    real = torch.cat([torch.zeros(2, 9, dtype=torch.bool), torch.ones(2, 20, dtype=torch.bool)], 1)
    with torch.no_grad():
        padded = model(torch.cat([pads, tokens], 1), key_padding=real)[:, 9:]
        torch.testing.assert_close(padded, model(tokens), **CLOSE)


@pytest.mark.parametrize("name", ["exact", "sdpa", "sliding_window", "linear", "flex"])
@pytest.mark.parametrize("conv", [0, 4])
def test_packed_documents_are_as_if_alone(make_model, name, conv):
    """WrinkleFree #53, profam #495: positions, attention and convolution all start anew."""
    model = make_model(name, "learned", short_conv=conv)
    one, two = torch.randint(50, (2, 9)), torch.randint(50, (2, 14))
    documents = torch.tensor([[3] * 9 + [1] * 14] * 2)
    with torch.no_grad():
        packed = model(torch.cat([one, two], 1), documents=documents)
        torch.testing.assert_close(packed[:, :9], model(one), **CLOSE)
        torch.testing.assert_close(packed[:, 9:], model(two), **CLOSE)


def test_position_ids_count_real_tokens_of_the_document():
    padding = torch.tensor([[False, False, True, True, True, True]])
    documents = torch.tensor([[0, 0, 0, 0, 7, 7]])
    device = torch.device("cpu")
    assert position_ids(0, 3, Mask(), device).tolist() == [[0, 1, 2]]
    assert position_ids(4, 1, Mask(), device).tolist() == [[4]]  # mlx-lm: a decoded token is not at position 0
    assert position_ids(0, 6, Mask(key_padding=padding), device).tolist() == [[0, 0, 0, 1, 2, 3]]
    assert position_ids(0, 6, Mask(documents=documents), device).tolist() == [[0, 1, 2, 3, 0, 1]]
    assert position_ids(4, 2, Mask(key_padding=padding, documents=documents), device).tolist() == [[0, 1]]


def test_tied_weight_is_one_parameter(make_model):
    model = make_model()
    names = [name for name, _ in model.named_parameters()]
    assert names.count("embedding.weight") == 1
    assert not any("head" in name for name in names)
    hidden = model.blocks[0].mlp.down.in_features
    expected = 50 * 32 + 2 * (32 * 96 + 32 * 32 + 3 * hidden * 32 + 2 * 32 + 2 * 8) + 32
    assert model.parameter_count() == expected


@torch.no_grad()
def test_an_untied_head_is_a_parameter_of_its_own(make_model):
    tied, model = make_model(), make_model(tie_embeddings=False)
    assert model.parameter_count() - tied.parameter_count() == 50 * 32
    assert model.flops(16) == tied.flops(16)  # the product is there either way
    tokens = torch.randint(50, (2, 9))
    model.head.weight[7] = 0.0
    assert model(tokens)[..., 7].eq(0).all()
    assert model(tokens)[..., 8].ne(0).all()
    assert torch.equal(model.generate(tokens, 6), model.generate(tokens, 6, use_cache=False))
    fresh = attnzoo.build_model(attnzoo.compose("train", ["model.tie_embeddings=false"]))
    assert fresh.head.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert not torch.equal(fresh.head.weight, fresh.embedding.weight)


def test_loss_is_the_mean_over_scored_tokens():
    logits = torch.randn(2, 3, 5)
    targets = torch.tensor([[1, IGNORE, 4], [IGNORE, IGNORE, 0]])
    scored = [(0, 0, 1), (0, 2, 4), (1, 2, 0)]
    by_hand = -sum(logits[b, t].log_softmax(-1)[v].item() for b, t, v in scored) / 3
    assert CausalLM.loss(logits, targets).item() == pytest.approx(by_hand, rel=1e-6)
    assert CausalLM.loss(torch.zeros(1, 2, 8), torch.zeros(1, 2, dtype=torch.long)).item() == pytest.approx(math.log(8))


def test_flops_equal_the_counter_where_it_counts_right(make_model):
    """torch's counter sees all n² pairs of the written-out softmax; the formula counts the visible ones."""
    model, n_tokens = make_model("exact"), 16
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.randint(50, (1, n_tokens)))
    hidden_pairs = n_tokens * n_tokens - n_tokens * (n_tokens + 1) / 2
    assert model.flops(n_tokens) + 2 * 4 * 32 * hidden_pairs == counter.get_total_flops()


def test_initial_values_are_as_the_table_says():
    cfg = attnzoo.compose("train", ["model.n_layers=2", "model.d_model=256", "model.n_heads=4", "model.short_conv=3"])
    model = attnzoo.build_model(cfg)
    state = model.state_dict()
    assert state["embedding.weight"].std().item() == pytest.approx(0.02, rel=0.02)
    assert state["blocks.0.attention.projection.qkv.weight"].std().item() == pytest.approx(1 / 16, rel=0.02)
    assert state["blocks.0.attention.out.weight"].std().item() == pytest.approx(1 / 16 / 2, rel=0.02)
    assert torch.equal(state["blocks.1.attention_norm.weight"], torch.ones(256))
    conv = state["blocks.1.attention.projection.conv.weight"]
    assert conv[0].eq(1).all()
    assert conv[1:].eq(0).all()


def test_building_is_seeded_and_leaves_the_global_state_alone():
    cfg = attnzoo.compose("train", ["model.d_model=32", "model.n_heads=4", "model.n_layers=1", "seed=3"])
    before = torch.random.get_rng_state()
    one, two = attnzoo.build_model(cfg), attnzoo.build_model(cfg)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_wrong_tokens_and_full_caches_are_clear_errors(make_model):
    model = make_model()
    with pytest.raises(RequestError, match=r"\(B, T\)"):
        model(torch.randn(2, 3))
    with pytest.raises(RequestError, match="T ≥ 1"):
        model(torch.zeros(2, 0, dtype=torch.long))
    cache = model.new_cache(1, 4)
    model(torch.zeros(1, 4, dtype=torch.long), cache=cache)
    with pytest.raises(RequestError, match="cache is full: it holds 4 of 4"):
        model(torch.zeros(1, 1, dtype=torch.long), cache=cache)
    with pytest.raises(RequestError, match="key_padding covers 3 tokens"):
        model(torch.zeros(1, 4, dtype=torch.long), key_padding=torch.ones(1, 3, dtype=torch.bool))


@pytest.mark.parametrize("kind", ["swiglu", "geglu", "gelu"])
def test_the_mlp_is_what_its_name_says(make_model, kind):
    model, x = make_model(mlp=kind, mlp_width=24), torch.randn(2, 5, 32)
    mlp = model.blocks[0].mlp
    inner = x @ mlp.gate_up.weight.T
    if kind == "gelu":
        hidden = torch.nn.functional.gelu(inner)
    else:
        gate, up = inner[..., :24], inner[..., 24:]
        hidden = up * (gate * gate.sigmoid() if kind == "swiglu" else gate * (1 + torch.erf(gate / 2**0.5)) / 2)
    torch.testing.assert_close(mlp(x), hidden @ mlp.down.weight.T)
    assert sum(p.numel() for p in mlp.parameters()) == (2 if kind == "gelu" else 3) * 24 * 32


def test_layer_norm_takes_the_mean_away(make_model):
    norm = make_model(norm="layer").norm
    assert [name for name, _ in norm.named_parameters()] == ["weight"]
    torch.testing.assert_close(norm(torch.full((1, 32), 7.0)), torch.zeros(1, 32))


def test_the_loss_of_half_precision_logits_is_taken_in_float32():
    logits, targets = torch.randn(2, 5, 9).bfloat16(), torch.randint(9, (2, 5))
    loss = CausalLM.loss(logits, targets)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, CausalLM.loss(logits.float(), targets))
