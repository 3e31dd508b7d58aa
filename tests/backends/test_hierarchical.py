"""Where it must be exact, and what it forgets. The conformance suite holds it to its definition."""

from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo import Mask
from attnzoo.errors import Refused, RequestError


def make(block=4, **sizes):
    return attnzoo.build("hierarchical", **{"n_heads": 2, "head_dim": 8} | sizes, block=block)


def draw(n, heads=2):
    return [torch.randn(2, heads, n, 8) for _ in range(3)]


def test_where_the_keys_of_each_node_are_equal_it_is_exact():
    """Runs of 8 equal keys: at T = 50 and c = 4 a node holds 4 tokens at most, and a count that is wrong shows."""
    q, k, v = draw(50)
    k = k[:, :, ::8].repeat_interleave(8, 2)[:, :, :50]
    exact = attnzoo.build("exact", n_heads=2, head_dim=8)
    padding = torch.rand(2, 50) > 0.3
    for mask in (Mask(), Mask(key_padding=padding), Mask(documents=torch.arange(50)[None] // 21)):
        torch.testing.assert_close(make()(q, k, v, mask), exact(q, k, v, mask), atol=2e-6, rtol=1e-5)


def test_within_a_far_node_the_order_is_forgotten():
    """Queries of blocks 0 and 1 tell tokens 0 and 1 apart; those from token 8 on read them as one node."""
    q, k, v = draw(40)
    swapped = k.clone()
    swapped[:, :, :2] = k[:, :, :2].flip(2)
    moved = (make()(q, k, v) - make()(q, swapped, v)).abs().amax((0, 1, 3))
    assert (moved[1:8] > 1e-3).all()
    assert (moved[8:] < 1e-6).all()


@pytest.mark.parametrize("split", [(3, 90, 7), (100,), (1,) * 100, (33, 33, 34)])
def test_decoding_in_a_ring_far_shorter_than_the_text(split):
    q, k, v = draw(100)
    attn, start, outs = make(block=2), 0, []
    cache = attn.new_cache(2, 100)
    assert cache.nodes.k.shape[2] < 30
    for n in split:
        rows = slice(start, start + n)
        outs.append(attn.extend(q[:, :, rows], k[:, :, rows], v[:, :, rows], cache))
        start += n
    torch.testing.assert_close(torch.cat(outs, 2), attn(q, k, v), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("block", [0, 1, 7])
def test_blocks_of_an_odd_number_are_refused(block):
    with pytest.raises(RequestError, match="even number"):
        make(block=block)


def test_what_it_cannot_honour_is_refused():
    q, k, v = draw(4)
    with pytest.raises(Refused, match="contiguous"):
        make()(q, k, v, Mask(documents=torch.tensor([[0, 1, 0, 1]])))
    with pytest.raises(Refused, match="'prefix'"):
        make()(q, k, v, Mask(prefix=2))
