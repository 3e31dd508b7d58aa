"""Chunks: nothing crosses an edge, each is a causal sequence of its own, the cache is the current chunk."""

from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo import Mask
from attnzoo.errors import RequestError


def make(chunk, heads=2):
    return attnzoo.build("chunked_local", n_heads=heads, head_dim=4, chunk=chunk)


@pytest.mark.parametrize("length", [1, 4, 5, 11, 20])
def test_each_chunk_is_a_causal_sequence_of_its_own(length):
    module, exact = make(5), attnzoo.build("exact", n_heads=2, head_dim=4)
    q, k, v = torch.randn(3, 2, 2, length, 4)
    alone = [exact(*(t[:, :, s : s + 5] for t in (q, k, v))) for s in range(0, length, 5)]
    torch.testing.assert_close(module(q, k, v), torch.cat(alone, 2), atol=1e-6, rtol=1e-5)


def test_plain_causality_builds_no_mask():
    module, (q, k, v) = make(5), torch.randn(3, 2, 2, 23, 4)
    module(q, k, v)
    assert module.kernel == "blocks/flash"
    everything = Mask(key_padding=torch.ones(2, 23, dtype=torch.bool))
    torch.testing.assert_close(module(q, k, v), module(q, k, v, everything), atol=1e-6, rtol=1e-5)


def test_without_causality_a_query_sees_its_whole_chunk():
    out = make(3, 1)(torch.zeros(1, 1, 7, 4), torch.zeros(1, 1, 7, 4), torch.eye(7)[None, None], Mask(causal=False))[
        0, 0
    ]
    assert [row.nonzero().flatten().tolist() for row in out] == [[0, 1, 2]] * 3 + [[3, 4, 5]] * 3 + [[6]]


def test_the_cache_is_one_chunk():
    module = make(5)
    assert module.new_cache(2, 1000, dtype=torch.float32).nbytes == 2 * 2 * 2 * 5 * 4 * 4
    assert module.new_cache(2, 3, dtype=torch.float32).nbytes == 2 * 2 * 2 * 3 * 4 * 4


def test_flops_and_options():
    assert attnzoo.build("chunked_local", n_heads=1, head_dim=1, chunk=3).flops(7, 7) == 4 * (6 + 6 + 1)
    with pytest.raises(RequestError, match="chunk=0"):
        make(0)
