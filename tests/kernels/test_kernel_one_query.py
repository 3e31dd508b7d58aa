"""One query over a cache whose tokens lie side by side: the same numbers, and no copy of the cache."""

import math

import pytest
import torch
from largest import Largest
from torch.nn.functional import scaled_dot_product_attention

from attnzoo import Mask, build
from attnzoo.kernels.one_query import attend


@pytest.mark.parametrize(("batch", "heads"), [(1, 8), (3, 4)])
@pytest.mark.parametrize("masked", [None, "seen", "added", "by head"])
@pytest.mark.parametrize("compiled", [False, True])
def test_it_is_softmax_attention(batch, heads, masked, compiled):
    q = torch.randn(batch, heads, 1, 8, dtype=torch.float64)
    k, v = (torch.randn(batch, heads, 8, 11, dtype=torch.float64).mT for _ in range(2))
    seen = torch.rand(batch, heads if masked == "by head" else 1, 1, 11) < 0.7
    seen[..., 0] = True
    added = torch.randn(1, heads, 1, 11, dtype=torch.float64).masked_fill(~seen, -math.inf)
    mask = {None: None, "seen": seen, "by head": seen, "added": added}[masked]
    expected = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
    call = torch.compile(attend, backend="aot_eager", fullgraph=True) if compiled else attend
    torch.testing.assert_close(call(q, k, v, mask, 0.3), expected)


@pytest.mark.parametrize("added", [False, True])
def test_a_query_that_sees_nothing_gives_zero(added):
    q, k = torch.randn(1, 2, 1, 4), torch.randn(1, 2, 4, 5).mT
    mask = torch.zeros(1, 1, 1, 5, dtype=torch.bool)
    mask = torch.zeros(1, 1, 1, 5).masked_fill(~mask, -math.inf) if added else mask
    assert torch.equal(attend(q, k, k, mask, 1.0), torch.zeros(1, 2, 1, 4))


@pytest.mark.parametrize(
    ("kv_heads", "kernel", "dtype", "expected"),
    [
        (4, "auto", torch.float32, True),
        (2, "auto", torch.float32, False),
        (4, "auto", torch.bfloat16, False),
        (4, "flash", torch.float32, False),
    ],
)
def test_where_the_cache_lies_so(kv_heads, kernel, dtype, expected):
    attn = build("gqa", n_heads=4, n_kv_heads=kv_heads, head_dim=8, kernel=kernel)
    cache = attn.new_cache(2, 7, dtype=dtype)
    assert (cache.keys.stride(-1) != 1) == (cache.values.stride(-1) != 1) == expected
    assert cache.nbytes == attn.cache_bytes(2, 7, dtype)
    q, k = torch.randn(2, 4, 1, 8, dtype=dtype), torch.randn(2, kv_heads, 1, 8, dtype=dtype)
    attn.extend(q, k, k, cache)
    assert attn.kernel == ("products" if expected else "sdpa/flash")


def test_chunks_and_tokens_are_one_full_pass():
    attn = build("sdpa", n_heads=4, head_dim=8)
    q, k, v = torch.randn(3, 2, 4, 9, 8).unbind()
    padding = torch.rand(2, 9) < 0.8
    for mask in (None, padding):
        cache, outs, end = attn.new_cache(2, 9), [], 0
        for n in (1, 3, 1, 1, 2, 1):
            part = slice(end, end := end + n)
            so_far = Mask(key_padding=None if mask is None else mask[:, :end])
            outs.append(attn.extend(q[:, :, part], k[:, :, part], v[:, :, part], cache, so_far))
        torch.testing.assert_close(torch.cat(outs, 2), attn(q, k, v, Mask(key_padding=mask)))


def test_chunks_have_the_fused_kernel():
    attn = build("sdpa", n_heads=2, head_dim=8)
    cache, q = attn.new_cache(1, 9), torch.randn(1, 2, 4, 8)
    for _ in range(2):
        attn.extend(q, q, q, cache)
        assert attn.kernel.startswith("sdpa/flash")


def test_a_subclass_is_asked_for_one_query_too():
    """What a plug-in makes of `attend` must hold in decoding."""
    attn = build("sdpa", n_heads=2, head_dim=8)
    attn.attend = lambda q, k, v, mask, bias, x: torch.full_like(q, 7)
    q = torch.randn(1, 2, 1, 8)
    assert torch.equal(attn.extend(q, q, q, attn.new_cache(1, 3)), torch.full_like(q, 7))


def test_a_token_copies_nothing_of_the_cache():
    attn = build("sdpa", n_heads=2, head_dim=32)
    cache = attn.new_cache(1, 101)
    cache.append(*(torch.randn(1, 2, 100, 32) for _ in range(2)))
    q, k, v = torch.randn(3, 1, 2, 1, 32).unbind()
    cache.append = lambda k, v: (cache.keys, cache.values)  # storing it is an operation on the whole, in place
    with Largest() as largest:
        attn.extend(q, k, v, cache)
    assert largest.numbers == 2 * 101  # the scores
