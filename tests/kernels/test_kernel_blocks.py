"""Views of overlapping blocks, and masks built once; the conformance suite holds the result to its definition."""

import pytest
import torch

from attnzoo import Mask, build
from attnzoo.kernels import blocks
from attnzoo.kernels.blocks import Gathered, Overlapping, static_scores


@pytest.mark.parametrize("m", [1, 2, 3])
def test_overlapping_blocks_and_their_gradient(m):
    n, c = 4, 3
    t = torch.randn(2, 1, (n + m - 1) * c, 2, dtype=torch.float64, requires_grad=True)
    out = Overlapping.apply(t, m, c)
    assert out.shape == (2, 1, n, m * c, 2)
    assert out.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()  # a view
    for block in range(n):
        assert torch.equal(out[:, :, block], t[:, :, block * c : (block + m) * c])
    assert torch.autograd.gradcheck(lambda t: Overlapping.apply(t, m, c), t)


@pytest.mark.parametrize("name", ["sliding_window", "block_sparse"])
def test_what_an_evaluation_built_serves_training(name):
    attn = build(name, n_heads=2, head_dim=8)
    q, k, v = (torch.randn(1, 2, 77, 8, requires_grad=True) for _ in range(3))
    with torch.inference_mode():
        attn(q.detach(), k.detach(), v.detach())
    attn(q, k, v).sum().backward()
    assert q.grad.abs().sum() > 0


def test_a_static_mask_is_built_once_for_all_layers_and_steps():
    static_scores.cache_clear()
    q, k, v = (torch.randn(1, 2, 70, 8) for _ in range(3))
    layers = [build("sliding_window", n_heads=2, head_dim=8, window=9) for _ in range(3)]
    for layer in layers * 2:
        layer(q, k, v)
    assert static_scores.cache_info().misses == 1
    first = layers[0](q, k, v)
    layers[0](q, k, v, Mask(window=3))  # another mask, another entry
    build("sliding_window", n_heads=2, head_dim=8, window=10)(q, k, v)
    assert static_scores.cache_info().misses == 3
    assert torch.equal(first, layers[0](q, k, v))


def test_reading_in_parts_changes_nothing(monkeypatch):
    attn = build("block_sparse", n_heads=4, n_kv_heads=2, head_dim=8, block=4)
    q, k, v = (torch.randn(2, h, 50, d, requires_grad=True) for h, d in ((4, 8), (2, 8), (2, 16)))
    padding = Mask(key_padding=torch.rand(2, 50) > 0.2)
    for mask in (Mask(), padding):
        whole = attn(q, k, v, mask)
        expected = torch.autograd.grad(whole.sum(), (q, k, v))
        with monkeypatch.context() as patch:
            patch.setattr(blocks, "LARGEST_PART", 10_000)  # bytes: three or four query blocks a part
            assert blocks._part_size(k, v, torch.zeros(13, 4), blocks.Cut(50, 50, 4)) < 5
            parts = attn(q, k, v, mask)
            with torch.no_grad():
                assert torch.equal(attn(q, k, v, mask), parts)
            found = torch.autograd.grad(parts.sum(), (q, k, v))
        # the same products in the same order, except for sums of gradients of one key over several query blocks
        torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_a_block_that_many_read_add_up_in_float32(dtype):
    """The terms are exact, so that only the sum can lose: eps / 2 when rounded once, before that 300 roundings of float32."""
    t = torch.zeros(1, 1, 2, 4, 8, dtype=dtype, requires_grad=True)
    above = torch.rand(1, 1, 300, 4, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    (out,) = Gathered.apply(t, torch.zeros(300, 1, dtype=torch.long))
    (gradient,) = torch.autograd.grad(out, t, above)
    exact = above.double().sum(2)
    allowed = torch.finfo(dtype).eps / 2 + 300 * torch.finfo(torch.float32).eps
    assert ((gradient[:, :, 0] - exact).abs() <= allowed * exact).all()
