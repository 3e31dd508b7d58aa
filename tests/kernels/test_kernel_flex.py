"""FlexAttention behind other backends: their patterns and score changes, uncompiled on a CPU, against their definitions."""

from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo import Mask
from attnzoo.kernels.flex import static_block_mask
from attnzoo.masks.translate import flex_mask_mod
from attnzoo.positions import AlibiBias

BACKENDS = {  # the first word is the name
    "sliding_window": {"window": 3}, "streaming": {"window": 3, "sinks": 2}, "dilated_window": {"window": 2, "dilation": 3},
    "chunked_local": {"chunk": 4}, "block_sparse": {"block": 2}, "softcap": {"cap": 0.5}, "sink_logit": {"init": 0.3},
    "sink_logit windowed": {"init": 0.3, "window": 3}, "sink_logit closed": {"init": -torch.inf},
}  # fmt: skip
T = 13
DOCUMENTS = torch.tensor([[0] * 4 + [1] * 9, [2] * 13])
PADDING = torch.tensor([[True] * 13, [False] * 13])


def qkv():
    torch.manual_seed(0)
    return torch.randn(2, 4, T, 8), torch.randn(2, 2, T, 8), torch.randn(2, 2, T, 8)


def built(name: str):
    return attnzoo.build(name.split()[0], n_heads=4, n_kv_heads=2, head_dim=8, kernel="flex", **BACKENDS[name])


@pytest.mark.parametrize("name", BACKENDS)
@torch.no_grad()
def test_it_is_the_definition(name):
    module, (q, k, v) = built(name), qkv()
    for mask in (Mask(), Mask(window=4, sinks=1, documents=DOCUMENTS), Mask(key_padding=PADDING)):
        for bias in (None, AlibiBias(4)):
            right = module.reference(q, k, v, mask, bias)[0]
            # float32 sums of 8 products and 13 weights
            torch.testing.assert_close(module(q, k, v, mask, bias).double(), right, rtol=1e-5, atol=1e-6)
    assert module.kernel == "flex/eager"


@pytest.mark.parametrize("name", BACKENDS)
@torch.no_grad()
def test_it_goes_on_from_a_cache(name):
    module, (q, k, v), cache = built(name), qkv(), built(name).new_cache(2, T)
    outs, bias = [], AlibiBias(4)
    for now in (slice(0, 5), slice(5, 9), slice(9, 12), slice(12, 13)):
        mask = Mask(documents=DOCUMENTS[:, : now.stop])
        outs.append(module.extend(q[:, :, now], k[:, :, now], v[:, :, now], cache, mask, bias))
    right = module.reference(q, k, v, Mask(documents=DOCUMENTS), bias)[0]
    torch.testing.assert_close(torch.cat(outs, 2).double(), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", BACKENDS)
def test_training_on_a_cpu_is_refused(name):
    name = name.split()[0]
    assert attnzoo.why_not(name, kernel="flex", training=False) == []
    assert "no backward on cpu" in attnzoo.why_not(name, kernel="flex")[0]
    assert "cannot drop" in attnzoo.why_not(name, kernel="flex", dropout=0.1)[0]


@torch.no_grad()
def test_layers_share_a_block_mask_and_other_options_do_not():
    static_block_mask.cache_clear()
    q, k, v = qkv()
    for window in (3, 3, 5):
        attnzoo.build("sliding_window", n_heads=4, n_kv_heads=2, head_dim=8, kernel="flex", window=window)(q, k, v)
    found = static_block_mask.cache_info()
    assert (found.misses, found.hits) == (2, 1)


def test_positions_of_the_columns():
    """Keys 2, 3 and 7 of a sequence, the last two of which ask."""
    at = torch.tensor([2, 3, 7])
    seen = flex_mask_mod(Mask(window=5), 2, 3, lambda i, j: j != 2, at)
    zero = torch.tensor(0)
    grid = [[bool(seen(zero, zero, torch.tensor(i), torch.tensor(j))) for j in range(3)] for i in range(2)]
    assert grid == [[False, True, False], [False, True, True]]
