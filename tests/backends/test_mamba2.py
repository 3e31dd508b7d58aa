from __future__ import annotations

import torch

import attnzoo
from attnzoo.checks.pytest import conformance

test_conformance = conformance("mamba2", quick=True)


def test_initial_steps_and_rates_are_the_papers():
    rule = attnzoo.build("mamba2", n_heads=64, head_dim=4, d_model=16)
    steps = rule.gate.steps(torch.zeros(1, 1, 16)).flatten()
    assert steps.min() > 0.999e-3
    assert steps.max() < 0.1001
    rates = rule.gate.log_rate.exp()
    assert rates.min() >= 1
    assert rates.max() <= 16.001


def test_a_larger_step_writes_more_and_keeps_less():
    rule = attnzoo.build("mamba2", n_heads=1, head_dim=1, d_model=1, scale=1.0)
    rule.gate.up.weight.data.fill_(1.0)
    rule.gate.bias.data.zero_()
    rule.gate.log_rate.data.zero_()
    ones, x = torch.ones(1, 1, 2, 1), torch.tensor([[[0.3], [1.2]]])
    step = torch.nn.functional.softplus(x.double()).flatten()
    _, weights = rule.reference(ones, ones, ones, x=x)
    right = torch.tensor([[step[0], 0], [(-step[1]).exp() * step[0], step[1]]])
    torch.testing.assert_close(weights[0, 0], right, atol=1e-7, rtol=1e-7)
