"""Feature maps; the sums over them are held to their definition by the conformance suite."""

from __future__ import annotations

import pytest
import torch

from attnzoo.kernels.features import EluPlusOne, log_positive_features, orthogonal_directions, taylor


def test_elu_plus_one_and_its_derivative():
    x = torch.randn(257, dtype=torch.float64, requires_grad=True)
    x.data[0] = 0.0
    assert torch.autograd.gradcheck(EluPlusOne.apply, x.detach()[1:].requires_grad_())
    y = EluPlusOne.apply(x)
    # 1 + elu rounds twice near 1; 2^-52 is the spacing of doubles there
    torch.testing.assert_close(y, torch.nn.functional.elu(x) + 1, atol=2**-52, rtol=0)
    assert torch.autograd.grad(y.sum(), x)[0][0] == 1.0


def test_features_stay_positive_where_elu_plus_one_rounds_to_zero():
    x = torch.tensor([-20.0, -80.0])
    assert (torch.nn.functional.elu(x) + 1 == 0).all()
    torch.testing.assert_close(EluPlusOne.apply(x), x.exp(), rtol=0, atol=0)


@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_taylor_features_multiply_to_the_second_order_of_exp(n):
    q, k = torch.randn(7, n, dtype=torch.float64), torch.randn(9, n, dtype=torch.float64)
    y = q @ k.T
    assert taylor(q).shape == (7, 1 + n + n * (n + 1) // 2)
    torch.testing.assert_close(taylor(q) @ taylor(k).T, 1 + y + y.square() / 2)


@pytest.mark.parametrize(("m", "n"), [(4, 4), (10, 4), (3, 8), (5, 1)])
def test_directions_are_orthogonal_in_blocks_and_fixed_by_the_seed(m, n):
    w = orthogonal_directions(m, n, seed=3)
    assert w.shape == (m, n)
    assert torch.equal(w, orthogonal_directions(m, n, seed=3))
    assert not torch.equal(w, orthogonal_directions(m, n, seed=4))
    for block in w.double().split(n):
        gram = block @ block.T
        # rounded to float32
        torch.testing.assert_close(gram, torch.diag(gram.diagonal()), atol=1e-5, rtol=0)


def test_positive_features_are_unbiased_for_the_exponential():
    q, k = (0.25 * torch.randn(6, 8, dtype=torch.float64) for _ in range(2))  # short: the variance grows as exp|q + k|²
    draws = []
    for seed in range(200):
        w = orthogonal_directions(32, 8, seed)
        features = [log_positive_features(t, w).exp() for t in (q, k)]
        draws.append(features[0] @ features[1].T / 32)
    draws = torch.stack(draws)
    error = (draws.mean(0) - (q @ k.T).exp()).abs()
    assert (error < 5 * draws.std(0) / 200**0.5).all()  # five standard errors
