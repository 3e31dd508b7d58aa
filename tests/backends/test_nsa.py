"""The three branches, against loops and one another. The conformance suite holds them to their definition."""

from __future__ import annotations

import math

import pytest
import torch

import attnzoo
from attnzoo.errors import RequestError

D, T = 8, 29


def make(heads=4, kv_heads=2, **options):
    torch.manual_seed(0)
    return attnzoo.build("nsa", n_heads=heads, n_kv_heads=kv_heads, head_dim=D, d_model=16, **options)


def draw(heads=4, kv_heads=2):
    g = torch.Generator().manual_seed(3)
    shapes = ((heads, T, D), (kv_heads, T, D), (kv_heads, T, D))
    return *(torch.randn(1, *shape, generator=g) for shape in shapes), torch.randn(1, T, 16, generator=g)


def test_the_branches_are_added_by_their_gates():
    attn, (q, k, v, x) = make(block=4, selected=2, window=5), draw()
    alone = [
        make(block=4, compressed=c, selected=s, window=w) for c, s, w in ((True, 0, 0), (False, 2, 0), (False, 0, 5))
    ]
    with torch.no_grad():
        attn.logits.normal_()
        alone[0].logits.copy_(attn.logits)
        outs = [branch(q, k, v, x=x) for branch in alone[::2]]
        # the selected branch alone chooses by means: let it choose as the whole does
        attn.logits.zero_()
        alone[0].logits.zero_()
        outs = [branch(q, k, v, x=x) for branch in alone]
        gates = (x @ attn.gate.up.weight.T + attn.gate.bias).unflatten(-1, (4, 3)).sigmoid()  # (1, T, H, 3)
        expected = sum(gates[..., b].mT[..., None] * out for b, out in enumerate(outs))
        torch.testing.assert_close(attn(q, k, v, x=x), expected, atol=1e-6, rtol=1e-5)


def test_the_compressed_branch_against_a_loop():
    attn, (q, k, v, x) = make(block=4, selected=0, window=0), draw()
    with torch.no_grad():
        attn.logits.normal_()
        out = attn(q, k, v, x=x)
        share = attn.logits.softmax(-1)
    assert not out[:, :, :4].any(), "no block is past"
    for head in range(4):
        group = head // 2
        for i in range(4, T):
            keys, values = (
                torch.stack([share[n, group] @ t[0, group, 4 * b : 4 * b + 4] for b in range(i // 4)])
                for n, t in enumerate((k, v))
            )
            weights = (keys @ q[0, head, i] / math.sqrt(D)).softmax(0)
            torch.testing.assert_close(out[0, head, i], weights @ values, atol=1e-6, rtol=1e-5)


def test_heads_that_share_keys_read_the_same_blocks():
    attn, (q, k, _, x) = make(block=2, selected=2, compressed=False, window=0), draw()
    out = attn(q, k, torch.eye(T).expand(1, 2, T, T), x=x)[0] > 0
    assert torch.equal(out[0], out[1])
    assert torch.equal(out[2], out[3])
    assert not torch.equal(out[0], out[2])


def test_blocks_are_chosen_by_the_sum_of_what_the_heads_would_read():
    attn, (q, k, _, x) = make(block=4, selected=1, compressed=False, window=0), draw()
    read = (attn(q, k, torch.eye(T).expand(1, 2, T, T), x=x)[0] > 0)[::2]
    means = k[0, :, :28].unflatten(1, (7, 4)).mean(2)
    for group in range(2):
        for i in range(8, T):
            heads = q[0, 2 * group : 2 * group + 2, i]
            best = (heads @ means[group, : i // 4].T / math.sqrt(D)).softmax(-1).sum(0).argmax().item()
            seen = [j for j in range(i + 1) if j // 4 in (best, i // 4)]
            assert read[group, i].nonzero().flatten().tolist() == seen


def test_a_single_branch_has_no_gate_and_wrong_options_are_named_together():
    assert make(compressed=False, selected=0).gate is None
    with pytest.raises(RequestError, match=r"block=0[\s\S]*window=-1"):
        make(block=0, window=-1)
    with pytest.raises(RequestError, match="every branch is off"):
        make(compressed=False, selected=0, window=0)
