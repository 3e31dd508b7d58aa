"""The decayed scan against its recurrence, token by token."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attnzoo.kernels.scan as scan_module
from attnzoo.checks.cost import CountingMode
from attnzoo.kernels.scan import scan

# float64; sums of tens of terms of size 1 in another order
CLOSE = {"atol": 1e-11, "rtol": 1e-10}


def recurrence(q, k, v, decay=None, beta=None, starts=None, state=None):
    """o_t = S_t^T q_t, written out."""
    groups, outs = q.shape[1] // k.shape[1], []
    s = k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]) if state is None else state
    for t in range(k.shape[2]):
        if starts is not None:
            s = s * ~starts[:, t, None, None, None]
        if decay is not None:
            s = s * decay[:, :, t, :, None].exp()
        u = v[:, :, t]
        if beta is not None:
            u = beta[:, :, t, None] * (u - (k[:, :, t, None] @ s)[:, :, 0])
        s = s + k[:, :, t, :, None] * u[:, :, None]
        outs.append((q[:, :, t, None] @ s.repeat_interleave(groups, 1))[:, :, 0])
    return torch.stack(outs, 2), s


def draw(n, width, delta, seed=0, heads=4, groups=2, d=3, e=5, batch=2):
    g = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    q, k, v = normal(batch, heads, n, d), normal(batch, groups, n, d), normal(batch, groups, n, e)
    decay = None if width is None else -normal(batch, groups, n, width).abs()
    beta = None
    if delta:
        k, beta = torch.nn.functional.normalize(k, dim=-1), normal(batch, groups, n).sigmoid()
    starts = torch.rand(batch, n, generator=g) < 0.2
    return q, k, v, decay, beta, starts, normal(batch, groups, d, e)


@pytest.mark.parametrize("chunk", [1, 2, 16, 64])
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("width", [None, 1, 3])
def test_every_chunk_gives_the_recurrence(width, delta, chunk):
    for n in (1, 2, 7, 33):
        q, k, v, decay, beta, starts, state = draw(n, width, delta)
        for held in ({}, {"starts": starts}, {"state": state}, {"starts": starts, "state": state}):
            out, last = scan(q, k, v, chunk=chunk, decay=decay, beta=beta, **held)
            right, right_last = recurrence(q, k, v, decay, beta, **held)
            torch.testing.assert_close(out, right, **CLOSE)
            torch.testing.assert_close(last, right_last, **CLOSE)


@given(
    splits=st.lists(st.integers(1, 19), min_size=1, max_size=5),
    width=st.sampled_from([None, 1, 3]),
    delta=st.booleans(),
    chunk=st.sampled_from([1, 4, 8]),
    seed=st.integers(0, 99),
)
def test_a_sequence_split_anywhere_resumes(splits, width, delta, chunk, seed):
    q, k, v, decay, beta, starts, state = draw(sum(splits), width, delta, seed)
    whole, last = scan(q, k, v, chunk=chunk, decay=decay, beta=beta, starts=starts, state=state)
    parts, at = [], 0
    for n in splits:
        cut = slice(at, at + n)
        part, state = scan(
            q[:, :, cut], k[:, :, cut], v[:, :, cut], chunk=chunk, decay=None if decay is None else decay[:, :, cut],
            beta=None if beta is None else beta[:, :, cut], starts=starts[:, cut], state=state,
        )  # fmt: skip
        parts.append(part)
        at += n
    torch.testing.assert_close(torch.cat(parts, 2), whole, **CLOSE)
    torch.testing.assert_close(state, last, **CLOSE)


@pytest.mark.parametrize("width", [1, 3])
def test_decays_of_any_strength_neither_overflow_nor_cancel(width):
    """After a token that forgets everything, later small decays keep their digits: sums of logarithms are never subtracted."""
    q, k, v, decay, _, _, _ = draw(40, width, False)
    decay = decay * 1e-3
    decay[:, :, 5::9] = -1e6
    decay[:, :, 7] = -math.inf
    right, _ = recurrence(q, k, v, decay)
    low = [t.float().requires_grad_() for t in (q, k, v, decay)]
    out, _ = scan(*low[:3], chunk=64, decay=low[3])
    # float32 (6e-8) over sums of at most 9 terms of size up to 10
    torch.testing.assert_close(out.double(), right, atol=2e-5, rtol=1e-5)
    out.square().sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in low)


@pytest.mark.parametrize("width", [None, 1, 2])
@pytest.mark.parametrize("delta", [False, True])
def test_gradients(width, delta):
    q, k, v, decay, beta, starts, state = draw(5, width, delta, heads=2, groups=1, d=2, e=2, batch=1)
    named = {"decay": decay, "beta": beta, "state": state}
    leaves = {n: t.requires_grad_() for n, t in named.items() if t is not None}

    def run(q, k, v, *rest):
        return scan(q, k, v, chunk=2, starts=starts, **dict(zip(leaves, rest, strict=True)))

    assert torch.autograd.gradcheck(run, (*(t.requires_grad_() for t in (q, k, v)), *leaves.values()))


def test_the_last_query_is_aligned_with_the_last_key():
    q, k, v, decay, _, _, _ = draw(9, 1, False)
    right, _ = recurrence(q, k, v, decay)
    out, _ = scan(q[:, :, 6:], k, v, chunk=4, decay=decay)
    torch.testing.assert_close(out, right[:, :, 6:], **CLOSE)
    out, _ = scan(q, k[:, :, 6:], v[:, :, 6:], chunk=4, decay=decay[:, :, 6:])
    assert out[:, :, :6].eq(0).all()
    torch.testing.assert_close(
        out[:, :, 6:], recurrence(q[:, :, 6:], k[:, :, 6:], v[:, :, 6:], decay[:, :, 6:])[0], **CLOSE
    )


def test_autocast_does_not_reach_the_state():
    q, k, v, decay, _, _, _ = (None if t is None else t.float() for t in draw(20, 1, False))
    plain, _ = scan(q, k, v, chunk=4, decay=decay)
    with torch.autocast("cpu", torch.bfloat16):
        out, state = scan(q, k, v, chunk=4, decay=decay)
    assert state.dtype == torch.float32
    assert torch.equal(out, plain)


def test_without_decay_no_product_of_queries_and_keys_is_kept_or_made_whole(monkeypatch):
    n, c = 1024, 64
    monkeypatch.setattr(scan_module, "CACHED", 1)  # one chunk at a time
    q, k, v = (torch.randn(1, heads, n, 4, requires_grad=True) for heads in (2, 1, 1))
    with CountingMode() as counting:
        out, _ = scan(q, k, v, chunk=c)
        out.sum().backward()
    products = 2 * n * c * 4  # bytes, of one head n * c
    assert counting.peak < products  # made whole, they and their lower triangle lie there together


def test_without_decay_some_chunks_at_a_time_give_the_recurrence_and_its_derivative(monkeypatch):
    monkeypatch.setattr(scan_module, "CACHED", 1)
    q, k, v = (torch.randn(1, heads, 5, 2, dtype=torch.float64, requires_grad=True) for heads in (2, 1, 1))
    state = torch.randn(1, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    for found, right in zip(scan(q, k, v, chunk=2, state=state), recurrence(q, k, v, state=state), strict=True):
        torch.testing.assert_close(found, right, **CLOSE)
    assert torch.autograd.gradcheck(lambda q, k, v, state: scan(q, k, v, chunk=2, state=state), (q, k, v, state))
