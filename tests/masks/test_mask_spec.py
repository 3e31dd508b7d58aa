"""`Mask.dense` against a definition of its own in plain Python loops, over random shapes and fields."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnzoo import Mask
from attnzoo.errors import RequestError


def by_hand(mask: Mask, n_queries: int, n_keys: int) -> list[list[list[bool]]]:
    """Who sees whom, one pair at a time, from the sentence in the contract."""
    rows = max(t.shape[0] for t in (mask.key_padding, mask.documents, torch.zeros(1, 1)) if t is not None)
    grid = []
    for b in range(rows):
        grid.append([])
        for r in range(n_queries):
            i, line = n_keys - n_queries + r, []
            for j in range(n_keys):
                seen = True
                if mask.causal and j > i and not j < mask.prefix:
                    seen = False
                if mask.window is not None and not (i - mask.window < j <= i) and not j < mask.sinks:
                    seen = False
                if mask.key_padding is not None and not mask.key_padding[b % len(mask.key_padding)][j]:
                    seen = False
                if mask.documents is not None:
                    ids = mask.documents[b % len(mask.documents)].tolist()
                    seen = seen and i >= 0 and ids[i] == ids[j]
                line.append(seen)
            grid[-1].append(line)
    return grid


@st.composite
def masks(draw, cross: bool = True):
    """A mask and the lengths it is for."""
    n_keys = draw(st.integers(1, 9))
    n_queries = draw(st.integers(1, 11)) if cross else n_keys
    batch = draw(st.integers(1, 3))
    ids = st.lists(st.lists(st.integers(0, 2), min_size=n_keys, max_size=n_keys), min_size=batch, max_size=batch)
    bits = st.lists(st.lists(st.booleans(), min_size=n_keys, max_size=n_keys), min_size=batch, max_size=batch)
    padding, documents = draw(st.none() | bits), draw(st.none() | ids)
    mask = Mask(
        causal=draw(st.booleans()),
        window=draw(st.none() | st.integers(1, 10)),
        sinks=draw(st.integers(0, 3)),
        prefix=draw(st.integers(0, 4)),
        key_padding=None if padding is None else torch.tensor(padding),
        documents=None if documents is None else torch.tensor(documents),
    )
    return mask, n_queries, n_keys


@given(masks())
@settings(max_examples=300, deadline=None)
def test_dense_is_the_definition(case):
    mask, n_queries, n_keys = case
    dense = mask.dense(n_queries, n_keys)
    assert dense.dtype == torch.bool
    assert dense.shape[1:] == (1, n_queries, n_keys)
    assert dense[:, 0].tolist() == by_hand(mask, n_queries, n_keys)


@given(masks())
@settings(max_examples=100, deadline=None)
def test_fields_name_what_changes_anything(case):
    mask, n_queries, n_keys = case
    if not mask.fields:
        assert torch.equal(mask.dense(n_queries, n_keys), Mask().dense(n_queries, n_keys))
    assert mask.static == (not mask.fields & {"key_padding", "documents"})


@given(masks())
@settings(max_examples=100, deadline=None)
def test_at_agrees_with_dense_and_outside_shows_nothing_where_a_tensor_is_read(case):
    mask, n_queries, n_keys = case
    i = torch.arange(n_keys - n_queries, n_keys)[:, None]
    visible = mask.at(i, torch.arange(n_keys)[None])
    assert torch.equal(visible if visible.dim() == 3 else visible[None], mask.dense(n_queries, n_keys)[:, 0])
    if not mask.static:
        assert not mask.at(torch.tensor([[n_keys]]), torch.tensor([[n_keys]])).any() or mask.key_padding is None


@given(masks(cross=False))
@settings(max_examples=100, deadline=None)
def test_the_last_rows_are_those_of_fewer_queries(case):
    mask, n, _ = case
    last = max(n - 2, 1)
    assert torch.equal(mask.dense(last, n), mask.dense(n, n)[:, :, n - last :])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_contiguous_documents(ids):
    runs = [ids[0]] + [b for a, b in pairwise(ids) if a != b]
    assert Mask(documents=torch.tensor([ids])).contiguous_documents == (len(runs) == len(set(runs)))


def test_two_queries_five_keys_align_bottom_right():
    assert Mask().grid(2, 5) == "x x x x .\nx x x x x"


def test_window_counts_the_own_key():
    assert Mask(window=3).dense(8, 8)[0, 0].sum(1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 0},
        {"window": -1},
        {"sinks": -1},
        {"prefix": -2},
        {"key_padding": torch.ones(2, 3)},
        {"key_padding": torch.ones(3, dtype=torch.bool)},
        {"documents": torch.ones(2, 3)},
        {"documents": torch.ones(2, 3, dtype=torch.bool)},
        {"documents": torch.ones(3, dtype=torch.long)},
    ],
    ids=str,
)
def test_masks_that_make_no_sense(wrong):
    with pytest.raises(RequestError, match="no sense"):
        Mask(**wrong)


def test_every_reason_at_once():
    with pytest.raises(RequestError) as caught:
        Mask(window=0, sinks=-1, prefix=-1)
    assert len(caught.value.reasons) == 3


def test_lengths_and_batch_are_checked():
    mask = Mask(key_padding=torch.ones(2, 5, dtype=torch.bool), documents=torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(RequestError) as caught:
        mask.check_lengths(3, batch=4)
    assert len(caught.value.reasons) == 4
    Mask(key_padding=torch.ones(1, 5, dtype=torch.bool)).check_lengths(5, batch=4)


def test_device_of_a_mask():
    assert Mask().device is None
    assert Mask(documents=torch.zeros(1, 2, dtype=torch.long)).device == torch.device("cpu")
