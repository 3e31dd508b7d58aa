from __future__ import annotations

import torch

import attnzoo
from attnzoo.checks.pytest import conformance

test_conformance = conformance("deltanet", quick=True)


def test_lengths_of_queries_and_keys_do_not_matter():
    rule = attnzoo.build("deltanet", n_heads=2, head_dim=8, d_model=16)
    q, k, v, x = torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 9, 16)
    # ε = 1e-6 beside a squared length near 8
    torch.testing.assert_close(rule(7 * q, 3 * k, v, x=x), rule(q, k, v, x=x), atol=1e-5, rtol=1e-5)


def test_unscaled_unless_asked():
    sizes = {"n_heads": 1, "head_dim": 4, "d_model": 4}
    plain, half = attnzoo.build("deltanet", **sizes), attnzoo.build("deltanet", **sizes, scale=0.5)
    half.load_state_dict(plain.state_dict())
    q, k, v, x = (torch.randn(1, 1, 6, 4) for _ in range(4))
    torch.testing.assert_close(2 * half(q, k, v, x=x[0]), plain(q, k, v, x=x[0]))
