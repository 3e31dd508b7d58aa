"""Each translation of `Mask`, read back densely, equals `Mask.dense`."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from attnzoo import Mask
from attnzoo.masks import translate

IDS = torch.tensor([[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1, 1]])
PADDING = torch.tensor([[True, True, True, True, False, False], [False, True, True, False, True, True]])


@st.composite
def masks(draw):
    n_queries = draw(st.integers(1, 8))
    return (
        Mask(
            causal=draw(st.booleans()),
            window=draw(st.none() | st.integers(1, 7)),
            sinks=draw(st.integers(0, 2)),
            prefix=draw(st.integers(0, 3)),
            key_padding=draw(st.sampled_from([None, PADDING, PADDING[:1]])),
            documents=draw(st.sampled_from([None, IDS, IDS[:1], IDS.flip(1)])),
        ),
        n_queries,
    )


@given(masks())
@settings(max_examples=200, deadline=None)
def test_sdpa(case):
    mask, n_queries = case
    n_keys = 6
    dense, is_causal = translate.sdpa_arguments(mask, n_queries, n_keys, torch.device("cpu"))
    assert dense is None or not is_causal, "never both"
    if is_causal:
        assert n_queries == n_keys, "torch aligns is_causal at the first key"
        dense = torch.ones(n_queries, n_keys, dtype=torch.bool).tril()[None, None]
    if dense is None:
        dense = torch.ones(1, 1, n_queries, n_keys, dtype=torch.bool)
    right = mask.dense(n_queries, n_keys)
    assert torch.equal(dense.expand_as(right), right)


def test_sdpa_probe_reads_the_mask_back():
    """Through torch itself: q = k = 0 and V = I give the weights."""
    for mask in (Mask(), Mask(window=2), Mask(causal=False), Mask(prefix=3), Mask(key_padding=PADDING)):
        for n_queries in (1, 4, 6):
            zero = torch.zeros(2, 1, n_queries, 4)
            dense, is_causal = translate.sdpa_arguments(mask, n_queries, 6, torch.device("cpu"))
            eye = torch.eye(6).expand(2, 1, 6, 6)
            out = F.scaled_dot_product_attention(
                zero, torch.zeros(2, 1, 6, 4), eye, attn_mask=dense, is_causal=is_causal
            )
            right = mask.dense(n_queries, 6).expand(2, 1, -1, -1)
            assert torch.equal(out > 0, right)


@given(masks())
@settings(max_examples=200, deadline=None)
def test_flex_mask_mod(case):
    mask, n_queries = case
    mod = translate.flex_mask_mod(mask, n_queries, 6)
    b, row = torch.arange(2)[:, None, None], torch.arange(n_queries)[None, :, None]
    seen = mod(b, torch.zeros((), dtype=torch.long), row, torch.arange(6)[None, None])
    right = mask.dense(n_queries, 6)[:, 0].expand(2, -1, -1)
    assert torch.equal(seen.expand(2, n_queries, 6), right)


@given(
    causal=st.booleans(),
    window=st.none() | st.integers(1, 7),
    n_queries=st.integers(1, 6),
    documents=st.sampled_from([None, IDS]),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_xformers_bias(causal, window, n_queries, documents):
    pytest.importorskip("xformers")
    mask = Mask(causal=causal, window=window, documents=documents)
    if documents is not None and n_queries != 6:
        with pytest.raises(ValueError, match="Tq = Tk"):
            translate.xformers_bias(mask, n_queries, 6, 2)
        return
    bias = translate.xformers_bias(mask, n_queries, 6, 2)
    right = mask.dense(n_queries, 6)
    if bias is None:
        assert right.all()
    elif documents is None:
        assert torch.equal(bias.materialize((n_queries, 6)) == 0, right[0, 0])
    else:  # the batch lies in one row, one block after the other
        packed = bias.materialize((12, 12)) == 0
        assert torch.equal(packed, torch.block_diag(*(m[0].int() for m in right)).bool())


def test_xformers_refuses_what_it_has_no_object_for():
    pytest.importorskip("xformers")
    for mask in (Mask(prefix=2), Mask(window=2, sinks=1), Mask(key_padding=PADDING)):
        with pytest.raises(ValueError, match="no bias object"):
            translate.xformers_bias(mask, 6, 6, 2)
    with pytest.raises(ValueError, match="contiguous"):
        translate.xformers_bias(Mask(documents=torch.tensor([[0, 1, 0, 1, 0, 1]])), 6, 6, 1)


@given(masks(), st.none() | st.integers(1, 7))
@settings(max_examples=200, deadline=None)
def test_flash_attn(case, window):
    """By its documentation: keys from i + Tk - Tq - left to i + Tk - Tq + right, -1 for all, and none after the own if causal."""
    mask, n_queries = case
    if not mask.fields <= translate.FLASH_ATTN_FIELDS:
        with pytest.raises(ValueError, match="flash-attn has no argument"):
            translate.flash_attn_arguments(mask)
        return
    how = translate.flash_attn_arguments(mask, window)
    i, j = torch.arange(n_queries)[:, None] + 6 - n_queries, torch.arange(6)
    left, right = how["window_size"]
    seen = ((left == -1) | (j >= i - left)) & ((right == -1) | (j <= i + right)) & (not how["causal"] or j <= i)
    plain = Mask(causal=mask.causal, window=mask.window)
    expected = plain.dense(n_queries, 6)[0, 0]
    if window is not None:
        expected = expected & Mask(window=window).dense(n_queries, 6)[0, 0]
    assert torch.equal(seen, expected)


@pytest.mark.parametrize("n_queries", [1, 2, 4, 6])
def test_flash_attn_packs_documents(n_queries):
    packing = translate.flash_attn_packing(IDS, n_queries)
    seen = torch.zeros(2 * n_queries, 12, dtype=torch.bool)
    q, k = packing["cu_seqlens_q"].tolist(), packing["cu_seqlens_k"].tolist()
    for q0, q1, k0, k1 in zip(q, q[1:], k, k[1:], strict=False):
        seen[q0:q1, k0:k1] = Mask().dense(q1 - q0, k1 - k0)[0, 0] if q1 > q0 else False
    right = Mask(documents=IDS).dense(n_queries, 6)[:, 0]
    assert torch.equal(seen, torch.block_diag(*right.int()).bool())
    assert packing["max_seqlen_k"] == max(b - a for a, b in itertools.pairwise(k))
