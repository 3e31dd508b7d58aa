from __future__ import annotations

import math

import torch

import attnzoo
from attnzoo.checks.pytest import conformance

test_conformance = conformance("based", quick=True)
SIZES = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 8}


def draw(n):
    return torch.randn(2, 4, n, 8), torch.randn(2, 2, n, 8), torch.randn(2, 2, n, 8)


def test_mixed_wholly_towards_the_window_it_is_sliding_window():
    based, window = attnzoo.build("based", **SIZES, window=5), attnzoo.build("sliding_window", **SIZES, window=5)
    based.mix.data.fill_(math.inf)
    q, k, v = draw(30)
    torch.testing.assert_close(based(q, k, v), window(q, k, v))


def test_without_a_window_it_is_the_papers_linear_layer():
    based = attnzoo.build("based", **SIZES, window=0, feature_dim=4)
    assert [n for n, _ in based.named_parameters()] == ["q_map", "k_map"]
    q, k, v = draw(30)
    small_q, small_k = q @ based.q_map, (k @ based.k_map).repeat_interleave(2, 1)
    y = small_q @ small_k.mT / 2
    kernel = (1 + y + y.square() / 2).tril()
    right = (kernel / kernel.sum(-1, keepdim=True)) @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(based(q, k, v), right, atol=1e-5, rtol=1e-4)  # float32 sums over 30 tokens
    assert based.new_cache(1, 500).nbytes == 2 * (1 + 4 + 10) * 9 * 4
