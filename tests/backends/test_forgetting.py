"""The gate: what padding and documents do to its sums, its cache, and long sums in float32."""

from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo import Mask
from attnzoo.backends.forgetting import running_sums
from attnzoo.errors import Refused, RequestError


def make(tile=4, heads=2, kv_heads=None):
    torch.manual_seed(0)
    module = attnzoo.build("forgetting", n_heads=heads, n_kv_heads=kv_heads, head_dim=4, d_model=8, tile=tile)
    with torch.no_grad():
        module.gate.weight.normal_()
    return module


def draw(n, batch=1, heads=2, kv_heads=2):
    shapes = ((heads, n, 4), (kv_heads, n, 4), (kv_heads, n, 4))
    return *(torch.randn(batch, *shape) for shape in shapes), torch.randn(batch, n, 8)


def test_padding_between_tokens_forgets_nothing():
    """The real tokens of a row with holes give what they give alone."""
    module, (q, k, v, x) = make(), draw(11)
    real = torch.tensor([[True, True, False, True, False, False, True, True, True, False, True]])
    kept = real[0]
    out = module(q, k, v, Mask(key_padding=real), x=x)[:, :, kept]
    alone = module(q[:, :, kept], k[:, :, kept], v[:, :, kept], x=x[:, kept])
    torch.testing.assert_close(out, alone, atol=1e-6, rtol=1e-5)


def test_sums_within_documents():
    t = torch.randn(2, 3, 29, dtype=torch.float64)
    documents = torch.tensor([[0] * 1 + [4] * 12 + [2] * 16, [0] * 20 + [1] * 9])
    sums = running_sums(t, documents)
    for row, cuts in enumerate(([1, 12, 16], [20, 9])):
        alone = torch.cat([part.cumsum(-1) for part in t[row].split(cuts, -1)], -1)
        torch.testing.assert_close(sums[row], alone)
    changed = t.clone()
    changed[0, :, :13] *= 7
    assert torch.equal(running_sums(changed, documents)[0, :, 13:], sums[0, :, 13:])


def test_the_gate_reads_each_token_between_key_and_query():
    """The gates of tokens 1 … i move row i. That of token 0, with no key before it, only by what differences round to."""
    module = make(heads=1)
    q, k, v, x = draw(6, heads=1, kv_heads=1)
    x.requires_grad_()
    module(q, k, v, x=x)[0, 0, 3].sum().backward()
    moved = x.grad.abs().sum(-1)[0]
    assert (moved[1:4] > 1e-3).all()
    assert moved[0] < 1e-6
    assert moved[4:].eq(0).all()


def test_far_into_a_text_near_keys_keep_their_precision():
    """Sums of 20000 gates near log f = -1: in float32 alone their last place is 2e-3."""
    module, n = make(tile=128), 20000
    q, k, v, x = draw(n)
    with torch.no_grad():
        module.gate.weight.mul_(0.1)
        module.gate.bias.fill_(-0.5)
        cache = module.new_cache(1, n, dtype=torch.float32)
        cache.append(k[:, :, : n - 1], v[:, :, : n - 1])
        cache.log_forget[:, :, : n - 1] = module._log_forget(x[:, : n - 1])
        last = module.extend(q[:, :, -1:], k[:, :, -1:], v[:, :, -1:], cache, x=x[:, -1:])
        near = slice(n - 300, None)  # what lies further back weighs e^-200
        exact = module.double().reference(*(t[:, :, near].double() for t in (q, k, v)), x=x[:, near].double())[0]
    torch.testing.assert_close(last.double(), exact[:, :, -1:], atol=1e-5, rtol=1e-5)


def test_the_cache_holds_a_gate_for_each_query_head_and_token():
    module = make(heads=4, kv_heads=2)
    cache = module.new_cache(3, 10, dtype=torch.bfloat16)
    assert cache.nbytes == 2 * (3 * 2 * 10 * 4) * 2 + 3 * 4 * 10 * 4 == module.cache_bytes(3, 10, torch.bfloat16)


def test_what_it_cannot_do_is_said():
    module, (q, k, v, x) = make(), draw(6)
    for mask in (Mask(causal=False), Mask(prefix=2), Mask(documents=torch.tensor([[0, 1, 0, 1, 0, 1]]))):
        with pytest.raises(Refused, match="forgetting"):
            module(q, k, v, mask, x=x)
    with pytest.raises(RequestError, match="d_model"):
        attnzoo.build("forgetting", n_heads=2, head_dim=4)
