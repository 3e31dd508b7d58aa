"""Public bug reports about attention operators, each reduced to a small input and the right value.

Those about models, data and training: test_reported_bugs_model.py. About recurrent rules: backends/test_known_facts_recurrent.py.
"""

from __future__ import annotations

import math

import pytest
import torch

import attnzoo
from attnzoo import Mask
from attnzoo.errors import RequestError

SOFTMAX = ["exact", "sdpa", "flex"]
TRAINS = ["exact", "sdpa"]


def qkv(n_queries: int, n_keys: int, heads: int = 2, kv_heads: int | None = None, dim: int = 8, batch: int = 2):
    shapes = [(heads, n_queries), (kv_heads or heads, n_keys), (kv_heads or heads, n_keys)]
    return [torch.randn(batch, h, n, dim) for h, n in shapes]


def seen(attn, n_queries: int, n_keys: int, mask: Mask) -> list[list[int]]:
    """Which keys each query reads: with q = k = 0 the weights are uniform, and v = I reads them out."""
    q, k = torch.zeros(1, attn.n_heads, n_queries, n_keys), torch.zeros(1, attn.n_kv_heads, n_keys, n_keys)
    out = attn(q, k, torch.eye(n_keys).expand(1, attn.n_kv_heads, -1, -1), mask)
    return (out[0, 0] > 0).int().tolist()


def build(name: str, dim: int = 8, heads: int = 2, kv_heads: int | None = None, **options):
    return attnzoo.build(name, n_heads=heads, n_kv_heads=kv_heads, head_dim=dim, **options)


@pytest.mark.parametrize("name", SOFTMAX)
def test_a_decoded_token_sees_every_key(name):
    """pytorch #103082: is_causal is top-left, so that one query of five keys saw key 0 only."""
    q, k, v = qkv(5, 5)
    attn = build(name)
    full = attn(q, k, v, Mask(causal=False))[:, :, -1:]
    torch.testing.assert_close(attn(q[:, :, -1:], k, v, Mask()), full, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", SOFTMAX)
def test_two_queries_of_five_keys_are_aligned_at_the_end(name):
    """flash-attention #951."""
    assert seen(build(name, dim=5), 2, 5, Mask()) == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize("name", SOFTMAX)
def test_causality_and_a_mask_intersect(name):
    """pytorch #187801: mask and is_causal both given."""
    padding = torch.tensor([[True, False, True, True]])
    assert seen(build(name, dim=4), 4, 4, Mask(key_padding=padding)) == [
        [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1],
    ]  # fmt: skip


@pytest.mark.parametrize("name", SOFTMAX)
def test_empty_rows_are_zero(name):
    """pytorch #103963: a boolean empty row was NaN."""
    padding = torch.arange(8)[None] >= 4  # under causality the first four rows see nothing
    q, k, v = qkv(8, 8, batch=1)
    out = build(name)(q, k, v, Mask(key_padding=padding))
    assert torch.equal(out[:, :, :4], torch.zeros(1, 2, 4, 8))
    assert out[:, :, 4:].isfinite().all()


@pytest.mark.parametrize("name", [*TRAINS, "sliding_window"])
def test_an_empty_row_poisons_no_gradient(name):
    """pytorch #41508: 0 · NaN in the backward."""
    q, k, v = (t.requires_grad_() for t in qkv(6, 6, batch=1))
    attn = build(name, **({"window": 3} if name == "sliding_window" else {}))
    mask = Mask(window=3, key_padding=torch.tensor([[False, False, True, True, True, True]]))
    attn(q, k, v, mask).sum().backward()
    for t in (q, k, v):
        assert t.grad.isfinite().all()
        assert torch.equal(t.grad[:, :, :2], torch.zeros(1, 2, 2, 8))


@pytest.mark.parametrize("name", SOFTMAX)
def test_permuted_memory_gives_the_same_values(name):
    """pytorch #181133: (84, 3, 3, 64) permuted."""
    base = [torch.randn(3, 84, 3, 64) for _ in range(3)]
    q, k, v = (t.permute(1, 0, 2, 3) for t in base)
    attn = build(name, dim=64, heads=3)
    torch.testing.assert_close(attn(q, k, v), attn(*(t.contiguous() for t in (q, k, v))), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", [*SOFTMAX, "sliding_window", "block_sparse"])
def test_unused_cache_slots_are_never_read(name):
    """flash-attention #1745: they hold NaN, and 0 · NaN is NaN."""
    attn = build(name)
    cache = attn.new_cache(2, 9)
    cache.keys.fill_(math.nan)
    cache.values.fill_(math.nan)
    q, k, v = qkv(3, 3)
    with torch.no_grad():
        for t in range(3):
            out = attn.extend(q[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1], cache)
        torch.testing.assert_close(out, attn(q, k, v)[:, :, -1:], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", [*SOFTMAX, "sliding_window"])
def test_a_window_of_three_is_three_keys(name):
    """transformers #39408: W + 1 keys."""
    attn = build(name, dim=8, **({"window": 3} if name == "sliding_window" else {}))
    counts = [sum(row) for row in seen(attn, 8, 8, Mask(window=None if name == "sliding_window" else 3))]
    assert counts == [1, 2, 3, 3, 3, 3, 3, 3]


def test_a_window_of_zero_is_refused():
    """unsloth PR 8253: it emptied every row."""
    for make in (lambda: Mask(window=0), lambda: Mask(window=-1), lambda: build("sliding_window", window=0)):
        with pytest.raises(RequestError, match="at least 1 key"):
            make()


@pytest.mark.parametrize("name", [*SOFTMAX, "gqa", "sliding_window", "block_sparse", "linear"])
def test_key_value_heads_are_interleaved(name):
    """onnx PR 7274: with H = 4, G = 2 and the value of key head g the constant g, the heads read 0, 0, 1, 1."""
    q, k, _ = qkv(5, 5, heads=4, kv_heads=2)
    v = torch.arange(2.0).view(1, 2, 1, 1).expand(2, 2, 5, 8)
    out = build(name, heads=4, kv_heads=2)(q, k, v)
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.tensor([0.0, 0.0, 1.0, 1.0]))


@pytest.mark.parametrize("name", SOFTMAX)
def test_key_value_heads_are_not_repeated_along_the_sequence(name):
    """prime-rl PR 2681."""
    q, k, v = qkv(6, 6, heads=4, kv_heads=2)
    repeated = [t.repeat_interleave(2, 1) for t in (k, v)]
    grouped = build(name, heads=4, kv_heads=2)(q, k, v)
    torch.testing.assert_close(grouped, build(name, heads=4)(q, *repeated), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", SOFTMAX)
def test_the_scale_is_that_of_the_head(name):
    """vit-pytorch #65: the first of two keys has weight .98201; scaled by the width it had .88080."""
    q, k, v = torch.zeros(1, 4, 1, 64), torch.zeros(1, 4, 2, 64), torch.zeros(1, 4, 2, 64)
    q[..., 0], k[:, :, 0, 0], v[:, :, 0] = 32.0, 1.0, 1.0
    # scores 32/8 and 0; divided by the square root of the width, 16, they would be 2 and 0: .88080
    out = build(name, dim=64, heads=4)(q, k, v, Mask(causal=False))
    assert out.mean().item() == pytest.approx(1 / (1 + math.exp(-4)), abs=1e-6)
    assert out.mean().item() == pytest.approx(0.98201, abs=5e-6)


@pytest.mark.parametrize("name", TRAINS)
def test_dropout_is_off_in_evaluation(name):
    """pytorch #124464, nanoGPT PR 240: the functional form stayed on."""
    q, k, v = qkv(16, 16)
    attn = attnzoo.build(name, n_heads=2, head_dim=8, dropout=0.5).eval()
    assert torch.equal(attn(q, k, v), attn(q, k, v))
    torch.testing.assert_close(attn(q, k, v), build(name)(q, k, v))
    attn.train()
    assert not torch.equal(attn(q, k, v), attn(q, k, v))


def test_linear_attention_without_content_is_the_running_mean():
    """fla #850, performer-pytorch #40: normaliser over heads instead of time, or not inverted."""
    v = torch.randn(1, 3, 7, 8)
    zeros = torch.zeros(1, 3, 7, 8)
    means = v.cumsum(2) / torch.arange(1, 8).view(1, 1, 7, 1)
    torch.testing.assert_close(build("linear", heads=3)(zeros, zeros, v), means)


def test_a_split_linear_state_resumes_with_its_key_sum():
    """fla PR 268: split 128/128."""
    attn = build("linear")
    q, k, v = qkv(256, 256, batch=1)
    with torch.no_grad():
        cache = attn.new_cache(1, 256)
        halves = [attn.extend(*(t[:, :, s] for t in (q, k, v)), cache) for s in (slice(0, 128), slice(128, 256))]
        torch.testing.assert_close(torch.cat(halves, 2), attn(q, k, v), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["exact", "sdpa", "linear"])
def test_lengths_do_not_compile_without_end(name):
    """pytorch #141486, #148545: five lengths, a bounded number of graphs, and the second shape right too."""
    graphs = 0

    def count(graph, _):
        nonlocal graphs
        graphs += 1
        return graph.forward

    torch._dynamo.reset()
    attn = build(name)
    compiled = torch.compile(attn, backend=count)
    with torch.no_grad():
        for n_tokens in (130, 200, 260, 330, 401):
            q, k, v = qkv(n_tokens, n_tokens, batch=1)
            torch.testing.assert_close(compiled(q, k, v), attn(q, k, v), atol=1e-5, rtol=1e-5)
    assert graphs <= 2  # the first length, and one with the length left open
