"""What `attnzoo show` computes: matrices that are the definition's, and numbers of heads by hand."""

from __future__ import annotations

import math

import pytest
import torch

import attnzoo
from attnzoo import Mask
from attnzoo.errors import RequestError
from attnzoo.measure.maps import backend_map, head_numbers, model_maps
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig


def model(name: str, positions: str = "rope", **options):
    sizes = ModelConfig(n_layers=2, d_model=32, n_heads=4)
    return assemble(sizes, AttentionConfig(name, options), PositionsConfig(positions), vocab_size=16, seed=0)


@pytest.mark.parametrize("name", attnzoo.list_backends())
def test_every_backend_has_a_picture(name):
    shown = backend_map(name, n_tokens=16)
    weights = torch.tensor(shown["weights"])
    assert weights.shape == (16, 16)
    assert weights.isfinite().all()
    assert not weights.triu(1).any()
    assert weights.abs().sum(-1).gt(0).all()  # also the first token reads something
    assert shown == backend_map(name, n_tokens=16)


def test_the_pattern_is_the_mask():
    shown = backend_map("sliding_window", n_tokens=12, options={"window": 3})
    read = torch.tensor(shown["weights"]) != 0
    assert torch.equal(read, Mask(window=3).dense(12, 12)[0, 0])
    assert (shown["options"], shown["cut"]) == ({"window": 3}, {})


def test_counts_are_cut_to_the_length_and_named():
    assert backend_map("sliding_window", n_tokens=32)["cut"] == {"window": 64}
    assert backend_map("sliding_window", n_tokens=32)["options"] == {"window": 4}
    assert backend_map("sliding_window", n_tokens=512)["cut"] == {}


def test_a_softmax_prefers_its_own_symbol():
    shown = backend_map("exact", n_tokens=24)
    weights, symbols = torch.tensor(shown["weights"]), torch.tensor(shown["symbols"])
    same = symbols[:, None] == symbols[None, :]
    past = torch.ones(24, 24, dtype=torch.bool).tril()
    assert weights[same & past].mean() > 3 * weights[~same & past].mean()


def test_wrong_requests():
    with pytest.raises(RequestError, match="heads 0 to 3"):
        backend_map("exact", head=4)
    with pytest.raises(RequestError, match="did you mean 'window'"):
        backend_map("sliding_window", options={"windw": 3})


def test_numbers_of_a_head_by_hand():
    half = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    visible = half > 0
    found = head_numbers(half, torch.tensor([[2.0, 9.0, 9.0], [-1.0, 3.0, 9.0], [9.0, 9.0, 9.0]]), visible)
    assert found["entropy_nats"] == pytest.approx(
        math.log(2) / 2
    )  # rows of 1 key and of 2; the empty row does not count
    assert found["keys"] == pytest.approx(math.sqrt(2))
    assert found["sink_share"] == pytest.approx(0.5)
    assert found["row_sum"] == pytest.approx(2 / 3)
    assert (found["logit_min"], found["logit_max"]) == (-1.0, 3.0)


def test_signs_do_not_cancel_and_nothing_read_is_no_number():
    signed = head_numbers(torch.tensor([[1.0, 0.0], [-0.5, 0.5]]), None, torch.ones(2, 2, dtype=torch.bool))
    assert signed["sink_share"] == pytest.approx(0.5)
    assert signed["logit_max"] is None
    nothing = head_numbers(torch.zeros(2, 2), None, torch.zeros(2, 2, dtype=torch.bool))
    assert nothing["entropy_nats"] is nothing["sink_share"] is None


def test_maps_of_a_model_are_what_its_layers_read():
    lm, tokens = model("exact"), torch.arange(10)[None]
    layers = model_maps(lm, tokens)
    assert [(layer["layer"], layer["backend"], len(layer["heads"])) for layer in layers] == [
        (0, "exact", 4),
        (1, "exact", 4),
    ]
    block = lm.layers[0]
    phases = lm.positions.phases(torch.arange(10)[None])
    q, k, _ = block.attention.projection(block.attention_norm(lm.embedding(tokens)), Mask(), phases)
    scores = (q @ k.mT / math.sqrt(8)).double()
    expected = scores.masked_fill(torch.ones(10, 10).triu(1).bool(), -math.inf).softmax(-1)[0]
    for head in layers[0]["heads"]:
        # float32 queries and keys against the same in float32: a unit of their rounding, times a few terms
        torch.testing.assert_close(torch.tensor(head["weights"]), expected[head["head"]].float(), atol=1e-5, rtol=1e-4)
    assert lm.training  # left as it was
    assert not any(attn._forward_pre_hooks for attn in lm.attention_modules())


def test_a_score_bias_is_part_of_the_logits():
    far = model_maps(model("exact", "alibi"), torch.zeros(1, 200, dtype=torch.long))[0]["heads"][0]
    assert far["logit_min"] == pytest.approx(far["logit_max"] - 199 * 2**-2, abs=1e-3)  # all tokens are one


@pytest.mark.parametrize("name", ["linear", "gated_deltanet", "gqa", "forgetting"])
def test_rules_without_a_softmax_too(name):
    heads = model_maps(model(name), torch.arange(12)[None])[1]["heads"]
    assert len(heads) == 4
    assert (heads[0]["logit_max"] is None) == (name in ("linear", "gated_deltanet"))


def test_a_picture_says_what_it_is_of():
    shown = backend_map("sliding_window", n_tokens=12, head=2, n_heads=3, head_dim=8, seed=4, options={"window": 3})
    told = ("backend", "n_tokens", "head", "n_heads")
    assert [shown[key] for key in told] == ["sliding_window", 12, 2, 3]
    assert set(shown) == {*told, "options", "cut", "symbols", "weights"}
    assert len(shown["symbols"]) == 12
    assert set(shown["symbols"]) <= set(range(6))
    other = [backend_map("gla", n_tokens=12, head=h, seed=s) for h, s in ((0, 0), (1, 0), (0, 1))]
    assert other[0]["weights"] != other[1]["weights"]
    assert other[0]["symbols"] == other[1]["symbols"] != other[2]["symbols"]
    for head in (-1, 4):
        with pytest.raises(RequestError, match="heads 0 to 3"):
            backend_map("exact", head=head)


def test_one_symbol_meets_itself_with_the_same_logit():
    """A query meets a key of its own symbol with MATCH, whatever the head dimension."""
    for head_dim in (8, 64):
        shown = backend_map("exact", n_tokens=40, head_dim=head_dim)
        weights, symbols = torch.tensor(shown["weights"], dtype=torch.float64), torch.tensor(shown["symbols"])
        row = weights[-1] / weights[-1, -1]
        assert torch.allclose(row[symbols == symbols[-1]], torch.ones(1, dtype=torch.float64))
        assert row[symbols != symbols[-1]].max() < 1
        logits = row.log()  # of other symbols: between -2 MATCH and 0, since codes have one length
        assert -8 <= logits.min() < 0
