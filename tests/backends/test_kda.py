from __future__ import annotations

import torch

import attnzoo
from attnzoo.checks.pytest import conformance

test_conformance = conformance("kda", quick=True)


def test_decay_before_the_delta_rule_as_in_the_paper():
    """S_2 = (I - β k_2 k_2^T) Diag(α) S_1 + β k_2 v_2^T: with decays of channels the order matters."""
    rule = attnzoo.build("kda", n_heads=1, head_dim=2, d_model=2).double()
    k = torch.tensor([[0.6, 0.8], [0.8, 0.6]], dtype=torch.float64)
    q, v, x = torch.randn(2, 2).double(), torch.randn(2, 2).double(), torch.randn(1, 2, 2).double()
    out = rule(q[None, None], k[None, None], v[None, None], x=x)
    alpha, beta = rule.log_decay(x)[0, 0].exp(), rule.write_strength(x)[0, 0]
    first = beta[0] * torch.outer(k[0], v[0])
    project = torch.eye(2) - beta[1] * torch.outer(k[1], k[1])
    second = project @ torch.diag(alpha[1]) @ first + beta[1] * torch.outer(k[1], v[1])
    # ε = 1e-6 in the length of q and k
    torch.testing.assert_close(out[0, 0, 1], q[1] / q[1].norm() @ second, atol=1e-5, rtol=1e-5)


def test_the_rank_is_the_head_dim_unless_given():
    sizes = {"n_heads": 2, "head_dim": 8, "d_model": 16}
    assert attnzoo.build("kda", **sizes).gate.down.weight.shape == (8, 16)
    assert attnzoo.build("kda", **sizes, rank=3).gate.down.weight.shape == (3, 16)
