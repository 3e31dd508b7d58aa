from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo.checks.pytest import conformance
from attnzoo.errors import RequestError

test_conformance = conformance("gla", quick=True)


def test_gates_are_roots_of_a_sigmoid_and_of_low_rank():
    rule = attnzoo.build("gla", n_heads=4, n_kv_heads=2, head_dim=8, d_model=32, rank=3, temperature=4.0)
    assert rule.gate.down.weight.shape == (3, 32)
    x = torch.randn(2, 5, 32)
    gates = rule.log_decay(x).exp()
    assert gates.shape == (2, 2, 5, 8)
    logits = x @ (rule.gate.up.weight @ rule.gate.down.weight).T + rule.gate.bias
    torch.testing.assert_close(gates.transpose(1, 2).flatten(2), logits.sigmoid() ** 0.25)


def test_a_closed_gate_forgets_its_channel_alone():
    rule = attnzoo.build("gla", n_heads=1, head_dim=2, d_model=4)
    rule.gate.up.weight.data.zero_()
    rule.gate.bias.data.copy_(torch.tensor([-1e9, 1e9]))
    q, k, v = torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2), torch.randn(1, 1, 3, 2)
    _, weights = rule.reference(q, k, v, x=torch.zeros(1, 3, 4))
    root = 2**-0.5
    right = root * torch.tensor([[2, 0, 0], [1, 2, 0], [1, 1, 2]], dtype=torch.float64)
    torch.testing.assert_close(weights[0, 0], right)
    torch.testing.assert_close(rule(q, k, v, x=torch.zeros(1, 3, 4)), (weights @ v.double()).float())


def test_gates_need_the_width_of_x():
    with pytest.raises(RequestError, match="d_model"):
        attnzoo.build("gla", n_heads=2, head_dim=8)
