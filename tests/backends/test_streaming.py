"""Sinks and window: what is seen, and a cache that keeps the first tokens for good."""

from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo.errors import RequestError
from attnzoo.kernels.ring import RingCache


def seen(sinks, window, i, n):
    module = attnzoo.build("streaming", n_heads=1, head_dim=4, sinks=sinks, window=window)
    v = torch.eye(n)[None, None]
    out = module(torch.zeros(1, 1, n, 4), torch.zeros(1, 1, n, 4), v)
    return out[0, 0, i].nonzero().flatten().tolist()


@pytest.mark.parametrize("n", [11, 200])  # one block, and many: sinks then lie in a block of their own
def test_the_first_s_tokens_and_the_last_w_are_seen(n):
    assert seen(2, 3, 1, n) == [0, 1]
    assert seen(2, 3, 4, n) == [0, 1, 2, 3, 4]
    assert seen(2, 3, 10, n) == [0, 1, 8, 9, 10]
    assert seen(2, 3, n - 1, n) == [0, 1, n - 3, n - 2, n - 1]


def test_sinks_over_more_than_one_block():
    assert seen(70, 3, 199, 200) == [*range(70), 197, 198, 199]


@pytest.mark.parametrize("split", [[1] * 12, [5, 7], [1, 4, 7], [12], [3, 9]])
def test_the_cache_holds_the_sinks_and_the_last_w(split):
    """Position p is stored as the number p, so that what is held can be read off."""
    cache = RingCache(torch.full((1, 1, 6, 1), -1.0), torch.full((1, 1, 6, 1), -1.0), 12, sinks=2)
    start = 0
    for size in split:
        new = torch.arange(start, start + size, dtype=torch.float32).view(1, 1, -1, 1)
        cache.store(new, new)
        start += size
        held = [p for p in range(start) if p < 2 or p >= start - 4]
        keys, values, positions = cache.ordered()
        assert positions.tolist() == keys.flatten().tolist() == values.flatten().tolist() == held
        used = min(start, 6)
        assert cache.positions().tolist() == cache.keys[0, 0, :used, 0].tolist()


def test_state_does_not_grow_with_the_text():
    module = attnzoo.build("streaming", n_heads=4, n_kv_heads=2, head_dim=8, sinks=3, window=5)
    assert module.new_cache(2, 1000, dtype=torch.float32).nbytes == 2 * 2 * 2 * 8 * 8 * 4
    assert module.new_cache(2, 2, dtype=torch.float32).nbytes == 2 * 2 * 2 * 2 * 8 * 4


def test_flops_count_the_pairs_that_are_seen():
    module = attnzoo.build("streaming", n_heads=1, head_dim=1, sinks=2, window=3)
    assert module.flops(6, 6) == 4 * (1 + 2 + 3 + 4 + 5 + 5)
    assert module.flops(1, 100) == 4 * 5


def test_options_that_make_no_sense():
    with pytest.raises(RequestError, match="window=0"):
        attnzoo.build("streaming", n_heads=1, head_dim=4, window=0)
    with pytest.raises(RequestError, match="sinks=-1"):
        attnzoo.build("streaming", n_heads=1, head_dim=4, sinks=-1)
