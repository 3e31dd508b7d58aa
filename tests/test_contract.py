"""What the base class gives: validation with every reason, the definition, the cache, empty rows, the worked numbers."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

import attnzoo
from attnzoo import Attention, Capabilities, Mask
from attnzoo.contract import causal_pairs, masked_softmax
from attnzoo.errors import Refused, RequestError


class Plain(Attention):
    """Only a rule: everything else is inherited."""

    source = "none"
    capabilities = Capabilities(masks=frozenset({"key_padding"}), bias=False, cross=False)

    def attend(self, q, k, v, mask, bias, x):
        visible = mask.dense(q.shape[2], k.shape[2])
        return masked_softmax(q @ self.repeat_kv(k).mT * self.scale, visible) @ self.repeat_kv(v)


def qkv(n=4, heads=2, kv_heads=2, dim=4):
    return torch.randn(1, heads, n, dim), torch.randn(1, kv_heads, n, dim), torch.randn(1, kv_heads, n, dim)


def test_worked_numbers_of_the_definition():  # given to four decimals, the outputs computed from rounded weights
    attn = attnzoo.build("exact", n_heads=1, head_dim=2)
    eye, v = torch.eye(2)[None, None], torch.diag(torch.tensor([10.0, 20.0]))[None, None]
    out, weights = attn.reference(eye, eye, v, Mask(causal=False))
    torch.testing.assert_close(
        weights[0, 0], torch.tensor([[0.6698, 0.3302], [0.3302, 0.6698]]).double(), atol=5e-5, rtol=0
    )
    torch.testing.assert_close(
        out[0, 0], torch.tensor([[6.6976, 6.6041], [3.3020, 13.3959]]).double(), atol=1e-3, rtol=0
    )
    out, weights = attn.reference(eye, eye, v)
    torch.testing.assert_close(weights[0, 0], torch.tensor([[1, 0], [0.3302, 0.6698]]).double(), atol=5e-5, rtol=0)
    torch.testing.assert_close(out[0, 0], torch.tensor([[10, 0], [3.3020, 13.3959]]).double(), atol=1e-3, rtol=0)


def test_masked_softmax_masks_first():
    scores, visible = torch.tensor([[1.0, 2.0]]), torch.tensor([[True, False]])
    assert masked_softmax(scores, visible).tolist() == [[1.0, 0.0]]


def test_masked_softmax_of_an_empty_row_is_0_with_gradient_0():
    scores = torch.randn(3, 4, requires_grad=True)
    visible = torch.tensor([[True] * 4, [False] * 4, [True, False] * 2])
    out = masked_softmax(scores, visible)
    assert out[1].tolist() == [0.0] * 4
    out.square().sum().backward()
    assert scores.grad.isfinite().all()
    assert not scores.grad[1].any()
    assert not scores.grad[2, 1::2].any()


def test_rows_sum_to_one_where_a_key_is_visible():
    attn, (q, k, v) = attnzoo.build("exact", n_heads=2, head_dim=4), qkv(6)
    mask = Mask(key_padding=torch.tensor([[False, False, True, True, False, True]]))
    sums = attn.reference(q, k, v, mask)[1].sum(-1)
    torch.testing.assert_close(sums, torch.tensor([0.0, 0, 1, 1, 1, 1]).double().expand_as(sums))


def test_without_positions_tokens_are_a_set():
    attn, (q, k, v) = attnzoo.build("exact", n_heads=2, head_dim=4), qkv(7)
    order = torch.randperm(7)
    out = attn(q, k, v, Mask(causal=False))
    torch.testing.assert_close(
        attn(q[:, :, order], k[:, :, order], v[:, :, order], Mask(causal=False)), out[:, :, order]
    )


def test_all_faults_of_the_tensors_in_one_error():
    attn = Plain(n_heads=2, head_dim=4)
    with pytest.raises(RequestError) as caught:
        attn(torch.zeros(1, 3, 2, 4), torch.zeros(2, 2, 3, 5), torch.zeros(1, 1, 2, 4, dtype=torch.float64))
    assert len(caught.value.reasons) >= 5


def test_all_refusals_in_one_error():
    attn, (q, k, v) = Plain(n_heads=2, head_dim=4), qkv(4)
    with pytest.raises(Refused) as caught:
        attn(q[:, :, :2], k, v, Mask(window=2, documents=torch.zeros(1, 4, dtype=torch.long)))
    said = str(caught.value)
    for word in ("window", "documents", "as many keys as queries"):
        assert word in said
    assert isinstance(caught.value, ValueError)


def test_errors_survive_pickling_whole():
    error = pickle.loads(pickle.dumps(Refused("no", ["a", "b"])))
    assert (error.message, error.reasons) == ("no", ["a", "b"])


def test_extend_equals_one_pass_and_a_full_cache_stays_as_it_was():
    attn, (q, k, v) = Plain(n_heads=2, head_dim=4), qkv(5)
    cache = attn.new_cache(1, 5)
    assert cache.nbytes == attn.cache_bytes(1, 5, torch.float32) == 2 * 2 * 5 * 4 * 4
    with pytest.raises(Refused):  # it declares no Tq ≠ Tk, which a mask over a longer cache would need: only here
        attn(q[:, :, :2], k, v)
    out = attn.extend(q, k, v, cache)
    torch.testing.assert_close(out, attn(q, k, v))
    keys = cache.keys.clone()
    with pytest.raises(RequestError, match="cannot be added"):
        attn.extend(q[:, :, :1], k[:, :, :1], v[:, :, :1], cache)
    assert cache.length == 5
    assert torch.equal(cache.keys, keys)


@pytest.mark.parametrize("sizes", [(-1, 4), (1, 0)])
def test_a_cache_of_nothing(sizes):
    """A batch of none is one; no room is none."""
    with pytest.raises(RequestError, match="or more"):
        Plain(n_heads=2, head_dim=4).new_cache(*sizes)


def test_extend_refuses_what_decoding_cannot_mean():
    attn, (q, k, v) = attnzoo.build("exact", n_heads=2, head_dim=4), qkv(4)
    for mask in (Mask(causal=False), Mask(prefix=9)):
        with pytest.raises(Refused, match="causal mask"):
            attn.extend(q, k, v, attn.new_cache(1, 8), mask)


def test_defaults_and_helpers():
    attn = Plain(n_heads=4, n_kv_heads=2, head_dim=16)
    assert attn.scale == 1 / math.sqrt(16)
    assert Plain(n_heads=1, head_dim=4, scale=3.0).scale == 3.0
    spread = attn.repeat_kv(torch.arange(2.0).view(1, 2, 1, 1))
    assert spread.flatten().tolist() == [0, 0, 1, 1]
    attn.dropout = 0.25
    assert (attn.train().dropout_now, attn.eval().dropout_now) == (0.25, 0.0)


@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (4, 4), (2, 5), (1, 9), (5, 2)])
def test_causal_pairs_counts_the_mask(n_queries, n_keys):
    assert causal_pairs(n_queries, n_keys) == Mask().dense(n_queries, n_keys).sum().item()
