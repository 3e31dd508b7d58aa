"""The logit is learned, takes mass from the keys, and costs no n x n tensor."""

from __future__ import annotations

import math

import pytest
import torch

import attnzoo
from attnzoo import Mask
from attnzoo.checks.cost import CountingMode
from attnzoo.errors import RequestError


def test_each_head_has_its_own_logit():
    module = attnzoo.build("sink_logit", n_heads=2, n_kv_heads=1, head_dim=4)
    with torch.no_grad():
        module.logit.copy_(torch.tensor([0.0, math.log(7.0)]))
    zeros, ones = torch.zeros(1, 2, 3, 4), torch.ones(1, 1, 3, 4)
    out = module(zeros, ones, ones)[0, :, :, 0]
    torch.testing.assert_close(out, torch.tensor([[1 / 2, 2 / 3, 3 / 4], [1 / 8, 2 / 9, 3 / 10]]))


def test_a_large_logit_takes_everything_and_an_empty_row_is_0():
    module = attnzoo.build("sink_logit", n_heads=2, head_dim=4, init=200.0)
    q, k, v = torch.randn(3, 1, 2, 5, 4)
    assert module(q, k, v).abs().max() < 1e-30
    padding = torch.tensor([[False, False, True, True, True]])
    module = attnzoo.build("sink_logit", n_heads=2, head_dim=4, init=-3.0)
    out = module(q, k, v, Mask(key_padding=padding))
    assert out[:, :, :2].eq(0).all()
    assert out[:, :, 2:].ne(0).all()


def test_plain_causality_needs_no_square_tensor():
    module, n = attnzoo.build("sink_logit", n_heads=2, head_dim=8), 512
    q, k, v = (torch.randn(1, 2, n, 8, requires_grad=True) for _ in range(3))
    with CountingMode() as counting:
        module(q, k, v).sum().backward()
    assert module.kernel == "sink_logit/flash"
    assert counting.peak < n * n * 4


def test_a_decoded_token_reads_the_cache_where_it_lies():
    """Nothing as large as the cache is made for one token."""
    module = attnzoo.build("sink_logit", n_heads=2, head_dim=64)
    cache = module.new_cache(1, 256, dtype=torch.float32)
    q, k, v = torch.randn(3, 1, 2, 255, 64)
    with torch.no_grad():
        module.extend(q, k, v, cache)
        with CountingMode() as counting:
            module.extend(q[:, :, :1], k[:, :, :1], v[:, :, :1], cache)
    given = cache.nbytes + q.untyped_storage().nbytes()  # views of these are no allocation
    assert counting.peak - given < cache.nbytes / 8


def test_init_must_be_below_infinity():
    for init in (math.inf, math.nan):
        with pytest.raises(RequestError, match="below infinity"):
            attnzoo.build("sink_logit", n_heads=2, head_dim=4, init=init)
