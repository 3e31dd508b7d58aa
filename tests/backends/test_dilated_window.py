"""Every r-th key back: what is seen, the ring's stride, and residues kept apart."""

from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo import Mask
from attnzoo.errors import RequestError


def make(window, dilation, heads=2):
    return attnzoo.build("dilated_window", n_heads=heads, head_dim=4, window=window, dilation=dilation)


def test_w_keys_r_apart_are_seen():
    n = 30
    out = make(3, 4, 1)(torch.zeros(1, 1, n, 4), torch.zeros(1, 1, n, 4), torch.eye(n)[None, None])[0, 0]
    assert out[2].nonzero().flatten().tolist() == [2]
    assert out[9].nonzero().flatten().tolist() == [1, 5, 9]
    assert out[29].nonzero().flatten().tolist() == [21, 25, 29]


@pytest.mark.parametrize("length", [1, 3, 7, 40])
def test_fewer_tokens_than_residues_and_lengths_that_are_no_multiple(length):
    module, (q, k, v) = make(3, 5), torch.randn(3, 2, 2, length, 4)
    torch.testing.assert_close(module(q, k, v), module.reference(q, k, v)[0].float(), atol=1e-6, rtol=1e-5)


def test_folding_and_the_loop_over_residues_agree():
    """A mask that hides nothing takes the other way through the code."""
    module, (q, k, v) = make(3, 5), torch.randn(3, 2, 2, 33, 4)
    everything = Mask(key_padding=torch.ones(2, 33, dtype=torch.bool))
    torch.testing.assert_close(module(q, k, v), module(q, k, v, everything), atol=1e-6, rtol=1e-5)


def test_a_decoded_token_reads_w_slots_of_the_ring(monkeypatch):
    from attnzoo.kernels import sdpa

    module, n = make(3, 4), 30
    q, k, v = torch.randn(3, 1, 2, n, 4)
    full, cache, lengths = module(q, k, v), module.new_cache(1, n, dtype=torch.float32), []
    call = sdpa.call

    def noting(q, k, v, *more, **how):
        lengths.append(k.shape[2])
        return call(q, k, v, *more, **how)

    monkeypatch.setattr(sdpa, "call", noting)
    assert cache.nbytes == 2 * 2 * 12 * 4 * 4
    rows = [module.extend(q[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1], cache) for t in range(n)]
    torch.testing.assert_close(torch.cat(rows, 2), full, atol=1e-6, rtol=1e-5)
    assert lengths == [min(t // 4 + 1, 3) for t in range(n)]


def test_flops_count_the_pairs_that_are_seen():
    module = attnzoo.build("dilated_window", n_heads=1, head_dim=1, window=2, dilation=3)
    assert module.flops(7, 7) == 4 * (3 * 1 + 4 * 2)


def test_options_that_make_no_sense():
    with pytest.raises(RequestError, match="dilation=0"):
        make(3, 0)
