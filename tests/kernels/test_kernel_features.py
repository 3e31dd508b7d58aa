"""Feature maps; the sums over them are held to their definition by the conformance suite."""

import torch

from attnzoo.kernels.features import EluPlusOne


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
