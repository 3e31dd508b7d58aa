from __future__ import annotations

import torch

import attnzoo
from attnzoo.checks.pytest import conformance

test_conformance = conformance("gated_deltanet", quick=True)


def test_a_closed_gate_empties_the_memory():
    rule = attnzoo.build("gated_deltanet", n_heads=2, head_dim=8, d_model=16)
    rule.gate.up.weight.data.zero_()
    rule.gate.bias.data.fill_(1e4)
    q, k, v, x = torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 9, 16)
    _, weights = rule.reference(q, k, v, x=x)
    assert weights.tril(-1).eq(0).all()
    alone = rule(q[:, :, 5:6], k[:, :, 5:6], v[:, :, 5:6], x=x[:, 5:6])
    torch.testing.assert_close(rule(q, k, v, x=x)[:, :, 5:6], alone)
