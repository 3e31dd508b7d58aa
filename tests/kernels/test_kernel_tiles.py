"""Tiles: the tile's height changes memory and speed, not the result."""

from __future__ import annotations

import pytest
import torch

from attnzoo import Mask
from attnzoo.checks.cost import CountingMode
from attnzoo.kernels.tiles import attend_tiles


@pytest.mark.parametrize("mask", [Mask(), Mask(prefix=20), Mask(causal=False), Mask(window=3)], ids=str)
@pytest.mark.parametrize("shape", [(33, 33), (5, 33), (33, 5), (1, 33)])
def test_any_tile_gives_the_same_output_and_gradients(mask, shape):
    q = torch.randn(2, 4, shape[0], 8, requires_grad=True, dtype=torch.float64)
    k, v = (torch.randn(2, 2, shape[1], 8, requires_grad=True, dtype=torch.float64) for _ in range(2))
    results = []
    for tile in (1, 4, 16, 64):
        out = attend_tiles(q, k, v, mask, None, scale=0.3, tile=tile)
        results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-10)


def test_dropout_is_the_same_when_computed_again():
    """The gradient of an output that is linear in v reproduces it: sum_v dO/dv · v = O, for the masks drawn forward."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 40, 4, dtype=torch.float64) for _ in range(3))
    v.requires_grad_()
    out = attend_tiles(q, k, v, Mask(), None, scale=0.5, tile=8, dropout=0.5)
    (gradient,) = torch.autograd.grad(out.sum(), v)
    torch.testing.assert_close((gradient * v).sum(), out.sum())


def test_memory_is_a_tile_and_not_the_square():
    n, peaks = 1024, []
    for tile in (32, n):
        q, k, v = (torch.randn(1, 1, n, 8, requires_grad=True) for _ in range(3))
        with CountingMode() as counting:
            attend_tiles(q, k, v, Mask(), None, scale=0.3, tile=tile).sum().backward()
        peaks.append(counting.peak)
    square = n * n * 4
    assert peaks[0] < square / 2 < square < peaks[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_keys_that_many_tiles_read_add_up_in_float32(dtype):
    """In the half type a sum over 128 tiles would lose up to 64 eps; rounded once it loses eps / 2, and the parts' own
    roundings, eps / 2 each, are independent and lose less than that together."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 512, 8, generator=g, dtype=torch.float64).to(dtype) for _ in range(3))
    found = []
    for kind in (torch.float64, dtype):
        v = v.to(kind).requires_grad_()
        out = attend_tiles(q.to(kind), k.to(kind), v, Mask(causal=False), None, scale=0.3, tile=4)
        found.append(torch.autograd.grad(out.sum(), v)[0].double())
    assert (found[1] - found[0]).norm() < torch.finfo(dtype).eps * found[0].norm()
