"""What each backend adds of its own: window counts, head layouts, blocks, feature maps; against loops and worked values."""

from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo import Mask
from attnzoo.errors import Refused, RequestError


def reads(attn, n, mask=None):
    """The keys each query reads, by the probe q = k = 0, v = I."""
    zero = torch.zeros(1, attn.n_heads, n, attn.head_dim)
    kv = zero[:, : attn.n_kv_heads]
    eye = torch.eye(n).expand(1, attn.n_kv_heads, n, n)
    return attn(zero, kv, eye, mask or Mask())[0, 0] > 0


@pytest.mark.parametrize(
    ("window", "counts"), [(1, [1] * 8), (3, [1, 2, 3, 3, 3, 3, 3, 3]), (8, list(range(1, 9))), (99, list(range(1, 9)))]
)
def test_sliding_window_reads_exactly_w_keys(window, counts):
    attn = attnzoo.build("sliding_window", n_heads=1, head_dim=4, window=window)
    assert reads(attn, 8).sum(1).tolist() == counts


@pytest.mark.parametrize("window", [31, 32, 33, 64, 65])
def test_sliding_window_counts_across_blocks(window):
    attn = attnzoo.build("sliding_window", n_heads=1, head_dim=4, window=window)
    assert reads(attn, 150).sum(1).tolist() == [min(i + 1, window) for i in range(150)]


def test_sliding_window_takes_the_narrower_of_two_windows():
    attn = attnzoo.build("sliding_window", n_heads=1, head_dim=4, window=5)
    assert reads(attn, 9, Mask(window=2)).sum(1).tolist() == [1] + [2] * 8
    assert reads(attn, 9, Mask(window=8)).sum(1).tolist() == [1, 2, 3, 4, 5, 5, 5, 5, 5]


def test_sliding_window_prefill_longer_than_the_window_then_step():
    """litgpt #2182, nanochat #452: W = 4, prefill of 6, then single tokens."""
    attn = attnzoo.build("sliding_window", n_heads=2, head_dim=4, window=4)
    q, k, v = torch.randn(3, 1, 2, 9, 4)
    cache = attn.new_cache(1, 9, device="cpu", dtype=torch.float32)
    parts = [attn.extend(*(t[:, :, a:b] for t in (q, k, v)), cache) for a, b in ((0, 6), (6, 7), (7, 9))]
    torch.testing.assert_close(torch.cat(parts, 2), attn(q, k, v), rtol=1e-5, atol=1e-6)
    assert cache.nbytes == 2 * 2 * 4 * 4 * 4


@pytest.mark.parametrize("window", [0, -3])
def test_sliding_window_of_nothing_is_refused(window):
    with pytest.raises(RequestError, match="at least 1 key"):
        attnzoo.build("sliding_window", n_heads=1, head_dim=4, window=window)


@pytest.mark.parametrize("name", ["exact", "sdpa", "gqa", "sliding_window", "linear", "block_sparse", "flex"])
def test_key_value_heads_are_interleaved(name):
    """H = 4, G = 2 and a value that is its key head's number: 0, 0, 1, 1."""
    attn = attnzoo.build(name, n_heads=4, n_kv_heads=2, head_dim=8)
    q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    v = torch.arange(2.0).view(1, 2, 1, 1).expand(1, 2, 5, 8)
    with torch.no_grad():
        out = attn(q, k, v)
    torch.testing.assert_close(out[0, :, -1, 0], torch.tensor([0.0, 0.0, 1.0, 1.0]))


def test_default_head_layouts():
    assert attnzoo.build("mqa", n_heads=8, head_dim=4).n_kv_heads == 1
    assert attnzoo.build("gqa", n_heads=8, head_dim=4).n_kv_heads == 2
    assert attnzoo.build("gqa", n_heads=2, head_dim=4).n_kv_heads == 1
    assert attnzoo.build("gqa", n_heads=8, n_kv_heads=4, head_dim=4).n_kv_heads == 4
    assert attnzoo.build("sdpa", n_heads=8, head_dim=4).n_kv_heads == 8


def test_mqa_with_more_heads_is_refused():
    with pytest.raises(RequestError, match="one key/value head"):
        attnzoo.build("mqa", n_heads=4, n_kv_heads=2, head_dim=4)(torch.zeros(1, 4, 2, 4), *torch.zeros(2, 1, 2, 2, 4))


@pytest.mark.parametrize("layout", ["bigbird", "strided", "fixed"])
def test_block_sparse_reads_the_same_blocks_at_any_length(layout):
    """Training on 64 tokens and decoding at 23 must mean the same pattern."""
    attn = attnzoo.build("block_sparse", n_heads=1, head_dim=4, layout=layout, block=4, random_blocks=2)
    whole = reads(attn, 64)
    for n in (1, 4, 5, 23, 48):
        assert torch.equal(reads(attn, n), whole[:n, :n])


def test_block_sparse_bigbird_reads_window_first_and_random_blocks():
    attn = attnzoo.build("block_sparse", n_heads=1, head_dim=4, block=2, window=2, global_blocks=1, random_blocks=1)
    whole = reads(attn, 32).view(16, 2, 16, 2)
    blocks = whole.any(3).any(1)
    for n in range(16):
        read = set(blocks[n].nonzero().flatten().tolist())
        assert {0, n, max(n - 1, 0)} <= read, "first block, own block, the one before"
        assert max(read) == n
        assert len(read) == min(n + 1, 4)
    other = attnzoo.build("block_sparse", n_heads=1, head_dim=4, block=2, seed=1)
    assert not torch.equal(reads(other, 32).view(16, 2, 16, 2).any(3).any(1), blocks), (
        "the seed chooses the random ones"
    )


def test_block_sparse_strided_and_fixed_by_hand():
    strided = attnzoo.build("block_sparse", n_heads=1, head_dim=4, layout="strided", block=1, window=2, stride=3)
    fixed = attnzoo.build("block_sparse", n_heads=1, head_dim=4, layout="fixed", block=1, stride=3)
    for name, attn, rule in (
        ("strided", strided, lambda n, b: n - b < 2 or (n - b) % 3 == 0),
        ("fixed", fixed, lambda n, b: n // 3 == b // 3 or b % 3 == 2),
    ):
        right = torch.tensor([[b <= n and rule(n, b) for b in range(10)] for n in range(10)])
        assert torch.equal(reads(attn, 10), right), name


def naive_linear(q, k, v):
    """Token by token, float64: S += φ(k) v, z += φ(k), o = φ(q) S / φ(q) z."""
    phi = lambda t: torch.where(t > 0, t + 1, t.clamp(max=0).exp())  # noqa: E731
    q, k, v = phi(q.double()), phi(k.double()), v.double()
    out, state, total = (
        torch.zeros_like(v),
        torch.zeros(q.shape[-1], v.shape[-1]).double(),
        torch.zeros(q.shape[-1]).double(),
    )
    for t in range(q.shape[0]):
        state, total = state + k[t, :, None] * v[t], total + k[t]
        out[t] = q[t] @ state / (q[t] @ total)
    return out


@pytest.mark.parametrize("chunk", [1, 4, 8, 128])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 20])
def test_linear_against_a_loop(chunk, n):
    attn = attnzoo.build("linear", n_heads=1, head_dim=4, chunk=chunk)
    q, k, v = torch.randn(3, n, 4, generator=torch.Generator().manual_seed(n))
    out = attn(*(t[None, None] for t in (q, k, v)))[0, 0]
    torch.testing.assert_close(out.double(), naive_linear(q, k, v), rtol=1e-5, atol=1e-5)


def test_linear_of_zero_scores_is_the_running_mean():
    """fla #850: q = k = 0 with several heads; the normaliser runs over time, not over heads."""
    attn = attnzoo.build("linear", n_heads=3, head_dim=2)
    v = torch.arange(1.0, 6.0).view(1, 1, 5, 1).expand(1, 3, 5, 2)
    out = attn(torch.zeros(1, 3, 5, 2), torch.zeros(1, 3, 5, 2), v)
    torch.testing.assert_close(out[0, :, :, 0], torch.tensor([1.0, 1.5, 2.0, 2.5, 3.0]).expand(3, 5))


def test_linear_of_ones_is_one():
    """performer-pytorch #40: v = 1 gives 1, a check of the denominator."""
    attn = attnzoo.build("linear", n_heads=2, head_dim=4)
    q, k = torch.randn(2, 1, 2, 300, 4)
    torch.testing.assert_close(attn(q, k, torch.ones(1, 2, 300, 4)), torch.ones(1, 2, 300, 4), rtol=1e-5, atol=0)


def test_linear_state_split_in_half_is_one_call():
    """fla PR 268: 128 and 128 tokens, the key sum carried."""
    attn = attnzoo.build("linear", n_heads=2, head_dim=4)
    q, k, v = torch.randn(3, 1, 2, 256, 4)
    cache = attn.new_cache(1, 256, device="cpu", dtype=torch.float32)
    halves = [attn.extend(*(t[:, :, a : a + 128] for t in (q, k, v)), cache) for a in (0, 128)]
    torch.testing.assert_close(torch.cat(halves, 2), attn(q, k, v), rtol=1e-5, atol=1e-5)


def test_sdpa_kernel_by_name_runs_or_is_refused():
    q = torch.randn(1, 2, 5, 8)
    for kernel in ("flash", "math"):
        attn = attnzoo.build("sdpa", n_heads=2, head_dim=8, kernel=kernel)
        attn(q, q, q)
        assert attn.kernel == f"sdpa/{kernel}"
    for kernel in ("efficient", "cudnn"):
        with pytest.raises(Refused, match=kernel):
            attnzoo.build("sdpa", n_heads=2, head_dim=8, kernel=kernel)(q, q, q)


def test_grouped_heads_at_head_dim_512_say_which_kernel_ran():
    """transformers PR 46960: GQA must not take the n x n kernel unseen."""
    attn = attnzoo.build("gqa", n_heads=4, n_kv_heads=2, head_dim=512)
    attn(torch.randn(1, 4, 3, 512), *torch.randn(2, 1, 2, 3, 512))
    assert attn.kernel.startswith("sdpa/")


def test_first_128_keys_blocked():
    """pytorch #109517: T = 441, and no NaN."""
    held = torch.arange(441)[None] >= 128
    q = torch.randn(1, 1, 441, 8, requires_grad=True)
    for name in ("exact", "sdpa", "sliding_window", "block_sparse", "linear"):
        attn = attnzoo.build(name, n_heads=1, head_dim=8)
        out = attn(q, q, q, Mask(key_padding=held))
        right = attn.reference(q.detach(), q.detach(), q.detach(), Mask(key_padding=held))[0]
        torch.testing.assert_close(out.double(), right, rtol=1e-4, atol=1e-5)
        (grad,) = torch.autograd.grad(out.square().sum(), q)
        assert grad.isfinite().all()
        assert not out[:, :, :128].any()
