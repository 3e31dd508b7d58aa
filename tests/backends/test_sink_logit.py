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


def test_wrong_options_are_named_together():
    for init in (math.inf, math.nan):
        with pytest.raises(RequestError, match=r"below infinity[\s\S]*window=0: at least 1 key"):
            attnzoo.build("sink_logit", n_heads=2, head_dim=4, init=init, window=0)


# -- with a window -----------------------------------------------------------------------------------------------------


def windowed(window=5, heads=4, dim=8, **sizes):
    torch.manual_seed(1)
    module = attnzoo.build("sink_logit", n_heads=heads, head_dim=dim, window=window, **sizes)
    with torch.no_grad():
        module.logit.normal_()
    return module


def test_a_window_against_a_loop():
    module, (q, k, v) = windowed(), torch.randn(3, 1, 4, 70, 8)
    out = module(q, k, v)
    for head in range(4):
        for i in (0, 3, 4, 5, 31, 32, 69):
            seen = slice(max(i - 4, 0), i + 1)
            e = (k[0, head, seen] @ q[0, head, i] / math.sqrt(8)).exp()
            expected = e @ v[0, head, seen] / (e.sum() + module.logit[head].exp())
            torch.testing.assert_close(out[0, head, i], expected, atol=1e-6, rtol=1e-5)


def test_a_logit_of_minus_infinity_is_a_sliding_window_and_a_wide_window_none():
    module, (q, k, v) = windowed(), torch.randn(3, 2, 4, 90, 8)
    wide, plain = windowed(90), windowed(None)
    torch.testing.assert_close(wide(q, k, v), plain(q, k, v), atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        module.logit.fill_(-math.inf)
    sliding = attnzoo.build("sliding_window", n_heads=4, head_dim=8, window=5)
    torch.testing.assert_close(module(q, k, v), sliding(q, k, v), atol=1e-6, rtol=1e-5)


def test_a_window_passes_the_suite():
    report = attnzoo.check(windowed(window=6, n_kv_heads=2), quick=True)
    assert report.passed, report


def test_a_window_costs_a_window():
    """Work and memory grow with T alone, and the cache does not grow at all."""
    module, counted = windowed(window=16, heads=2), {}
    for n in (512, 1024):
        q, k, v = (torch.randn(1, 2, n, 8, requires_grad=True) for _ in range(3))
        with CountingMode() as counting:
            module(q, k, v).sum().backward()
        counted[n] = counting.work, counting.peak
    assert module.kernel == "sink_logit/flash"
    for small, large in zip(counted[512], counted[1024], strict=True):
        assert large < 2.1 * small  # what does not depend on T makes it less than 2; a square would make it 4
    assert module.new_cache(3, 1000).nbytes == 2 * 3 * 2 * 16 * 8 * 4 == module.cache_bytes(3, 1000, torch.float32)
    assert module.flops(1024, 1024) == 4 * 2 * 8 * (1024 * 16 - 16 * 15 / 2)


def test_a_decoded_token_reads_the_ring_where_it_lies():
    module = windowed(window=128, heads=2, dim=64)
    cache, (q, k, v) = module.new_cache(1, 4096, dtype=torch.float32), torch.randn(3, 1, 2, 300, 64)
    with torch.no_grad():
        full = module(q, k, v)
        module.extend(q[:, :, :-1], k[:, :, :-1], v[:, :, :-1], cache)
        with CountingMode() as counting:
            out = module.extend(q[:, :, -1:], k[:, :, -1:], v[:, :, -1:], cache)
    torch.testing.assert_close(out, full[:, :, -1:], atol=1e-6, rtol=1e-5)
    assert counting.peak - cache.nbytes - q.untyped_storage().nbytes() < cache.nbytes / 8
