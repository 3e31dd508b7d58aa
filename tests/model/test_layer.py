"""The attention layer: cross-attention, the short convolution, head layout."""

from __future__ import annotations

import pytest
import torch

from attnzoo import Mask, build
from attnzoo.errors import RequestError
from attnzoo.model import AttentionLayer
from attnzoo.model.layer import ShortConv


def test_cross_attention_reads_the_context_only():
    layer = AttentionLayer(build("sdpa", n_heads=4, n_kv_heads=2, head_dim=8), 32)
    x, context = torch.randn(2, 5, 32), torch.randn(2, 11, 32)
    out = layer(x, Mask(causal=False), context=context)
    assert out.shape == (2, 5, 32)
    moved = x.clone()
    moved[:, 3] += 1
    assert torch.equal(layer(moved, Mask(causal=False), context=context)[:, :3], out[:, :3])
    padding = torch.arange(11).expand(2, -1) < 7
    other = context.clone()
    other[:, 7:] = 5.0
    hidden = [layer(x, Mask(causal=False, key_padding=padding), context=c) for c in (context, other)]
    torch.testing.assert_close(*hidden, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(hidden[0], layer(x, Mask(causal=False), context=context[:, :7]), atol=1e-6, rtol=1e-5)


def test_cross_attention_uses_the_same_projections_as_self_attention():
    layer = AttentionLayer(build("exact", n_heads=2, head_dim=4), 8)
    x = torch.randn(1, 6, 8)
    torch.testing.assert_close(layer(x, Mask(), context=x), layer(x, Mask()))


def test_cross_attention_has_no_cache():
    layer = AttentionLayer(build("sdpa", n_heads=2, head_dim=4), 8)
    x = torch.randn(1, 3, 8)
    with pytest.raises(RequestError, match="no cache"):
        layer(x, context=x, cache=layer.new_cache(1, 4))


def test_short_convolution_is_the_identity_at_first_and_causal_after():
    conv, x = ShortConv(6, 4), torch.randn(2, 9, 6)
    with torch.no_grad():
        conv.weight.zero_()[0] = 1
        assert torch.equal(conv(x, None, None), x)
        conv.weight.normal_()
        out = conv(x, None, None)
        by_hand = sum(conv.weight[w] * x[:, 5 - w] for w in range(4))
        torch.testing.assert_close(out[:, 5], by_hand)
        later = x.clone()
        later[:, 5:] = 9.0
        assert torch.equal(conv(later, None, None)[:, :5], out[:, :5])


def test_short_convolution_stops_at_documents():
    conv, x = ShortConv(6, 4), torch.randn(1, 9, 6)
    with torch.no_grad():
        conv.weight.normal_()
        packed = conv(x, None, torch.tensor([[4] * 5 + [2] * 4]))
        torch.testing.assert_close(packed[:, 5:], conv(x[:, 5:], None, None))


def test_the_input_reaches_a_rule_that_reads_it():
    seen = {}
    attention = build("exact", n_heads=2, head_dim=4)
    attention.attend = lambda q, k, v, mask, bias, x: seen.setdefault("x", x) is not None and q
    x = torch.randn(1, 3, 8)
    AttentionLayer(attention, 8)(x)
    assert seen["x"] is x
