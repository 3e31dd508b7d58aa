"""float16: weights are divided before they meet the values, whose products would leave the type's range."""

from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo import Mask

N_TOKENS, LARGEST = 24, 65_504.0


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize("name", ["moba", "nsa", "hierarchical", "gqa", "mqa", "sdpa", "exact"])
@torch.no_grad()
def test_values_near_the_largest_number_stay_finite(name: str, decoded: bool, autocast: bool) -> None:
    """|v| ≤ 40,000, so that no weighted mean of them is above it; sums of undivided weights times them are."""
    torch.manual_seed(0)
    attn = attnzoo.build(name, n_heads=4, head_dim=16, d_model=64).eval()
    heads = [attn.n_heads, attn.n_kv_heads, attn.n_kv_heads]
    q, k, v = (torch.randn(1, h, N_TOKENS, 16) for h in heads)
    v, x = (v.clamp(-1, 1) * 40_000).half().float(), torch.randn(1, N_TOKENS, 64)
    if not autocast:
        attn, q, k, v, x = attn.half(), q.half(), k.half(), v.half(), x.half()
    with torch.autocast("cpu", torch.float16, enabled=autocast):
        if decoded:
            cache = attn.new_cache(1, N_TOKENS, device="cpu", dtype=v.dtype)
            parts = [[t[:, :, n : n + 1] for t in (q, k, v)] for n in range(N_TOKENS)]
            out = torch.cat(
                [attn.extend(*part, cache, Mask(), None, x[:, n : n + 1]) for n, part in enumerate(parts)], 2
            )
        else:
            out = attn(q, k, v, Mask(), None, x)
    assert out.isfinite().all()
    expected = attn.double().reference(*(t.double() for t in (q, k, v)), x=x.double())[0]
    assert expected.abs().max() < LARGEST
    # weights, values and sums rounded to 11 bits each; scores of q and k rounded so move weights by as much again
    assert (out.double() - expected).abs().max() < 8 * 2.0**-11 * 40_000
