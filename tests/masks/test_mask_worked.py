"""Worked examples of `Mask` and its translations, written out. With them few mutants survive: docs/mutation.md."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from attnzoo import Mask
from attnzoo.errors import RequestError
from attnzoo.masks import translate

CPU = torch.device("cpu")
PADDING = torch.tensor([[True, True, False, True], [False, True, True, True]])
IDS = torch.tensor([[0, 0, 1, 1], [2, 2, 2, 0]])

GRIDS = [
    (Mask(), 4, 4, "x... xx.. xxx. xxxx"),
    (Mask(), 2, 5, "xxxx. xxxxx"),
    (Mask(), 4, 2, ".. .. x. xx"),
    (Mask(causal=False), 2, 3, "xxx xxx"),
    (Mask(window=1), 3, 3, "x.. .x. ..x"),
    (Mask(window=2, sinks=1), 5, 5, "x.... xx... xxx.. x.xx. x..xx"),
    (Mask(window=2, causal=False), 4, 4, "x... xx.. .xx. ..xx"),
    (Mask(window=2, sinks=2, causal=False), 4, 4, "xx.. xx.. xxx. xxxx"),
    (Mask(window=2, sinks=1), 2, 5, "x.xx. x..xx"),
    (Mask(prefix=2), 4, 4, "xx.. xx.. xxx. xxxx"),
    (Mask(prefix=3, window=2), 4, 4, "x... xx.. .xx. ..xx"),
    (Mask(prefix=1), 4, 2, "x. x. x. xx"),
    (Mask(key_padding=PADDING[:1]), 4, 4, "x... xx.. xx.. xx.x"),
    (Mask(key_padding=PADDING[1:]), 2, 4, ".xx. .xxx"),
    (Mask(documents=IDS[:1]), 4, 4, "x... xx.. ..x. ..xx"),
    (Mask(documents=IDS[1:], causal=False), 4, 4, "xxx. xxx. xxx. ...x"),
    (Mask(documents=IDS[:1], causal=False), 5, 4, ".... xx.. xx.. ..xx ..xx"),
    (Mask(documents=IDS[:1], key_padding=PADDING[:1]), 4, 4, "x... xx.. .... ...x"),
]


@pytest.mark.parametrize(("mask", "n_queries", "n_keys", "rows"), GRIDS, ids=[f"{g[0]}-{g[1]}-{g[2]}" for g in GRIDS])
def test_grid(mask, n_queries, n_keys, rows):
    assert mask.grid(n_queries, n_keys).replace(" ", "").split("\n") == rows.split()
    seen = translate.flex_mask_mod(mask, n_queries, n_keys)(
        torch.tensor(0), torch.tensor(0), torch.arange(n_queries)[:, None], torch.arange(n_keys)[None]
    )
    right = mask.dense(n_queries, n_keys)
    assert torch.equal(seen.expand(n_queries, n_keys), right[0, 0])
    given, is_causal = translate.sdpa_arguments(mask, n_queries, n_keys, CPU)
    if is_causal:
        assert n_queries == n_keys
        assert torch.equal(right[0, 0], torch.ones(n_keys, n_keys).tril().bool())
    else:
        assert right.all() if given is None else torch.equal(given, right)


@pytest.mark.parametrize("field", ["key_padding", "documents"])
def test_each_batch_row_has_its_own_grid(field):
    held = {"key_padding": PADDING, "documents": IDS}[field]
    both = Mask(**{field: held})
    assert both.dense(3, 4).shape == (2, 1, 3, 4)
    mod = translate.flex_mask_mod(both, 3, 4)
    for b in range(4):  # a batch of 4 over 2 rows: the rows repeat
        right = Mask(**{field: held[b % 2 : b % 2 + 1]}).dense(3, 4)[0, 0]
        assert torch.equal(both.dense(3, 4)[b % 2, 0], right)
        seen = mod(torch.tensor(b), torch.tensor(0), torch.arange(3)[:, None], torch.arange(4)[None])
        assert torch.equal(seen, right)
    assert both.grid(4) == Mask(**{field: held[:1]}).grid(4), "the picture is of the first row"


def test_positions_outside_the_sequence_see_and_show_nothing():
    position = torch.arange(-3, 6)
    padding = Mask(causal=False, key_padding=torch.ones(1, 4, dtype=torch.bool)).at(torch.tensor(0), position)
    assert padding[0].tolist() == [False] * 3 + [True] * 4 + [False] * 2
    same = Mask(causal=False, documents=torch.zeros(1, 4, dtype=torch.long))
    assert same.at(torch.tensor(0), position)[0].tolist() == [False] * 3 + [True] * 4 + [False] * 2
    assert same.at(position, torch.tensor(0))[0].tolist() == [False] * 3 + [True] * 4 + [False] * 2


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({}, set()),
        ({"causal": False}, {"bidirectional"}),
        ({"window": 1}, {"window"}),
        ({"window": 1, "sinks": 1}, {"window", "sinks"}),
        ({"sinks": 1}, set()),
        ({"prefix": 1}, {"prefix"}),
        ({"prefix": 1, "causal": False}, {"bidirectional"}),
        ({"key_padding": PADDING}, {"key_padding"}),
        ({"documents": IDS}, {"documents"}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_fields(settings, fields):
    mask = Mask(**settings)
    assert mask.fields == fields
    assert mask.static is not bool(fields & {"key_padding", "documents"})


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"window": 0}, "window=0"),
        ({"window": -3}, "window=-3"),
        ({"sinks": -1}, "sinks=-1"),
        ({"prefix": -1}, "prefix=-1"),
        ({"key_padding": torch.ones(3, dtype=torch.bool)}, "key_padding"),
        ({"key_padding": torch.ones(1, 1, 3, dtype=torch.bool)}, "key_padding"),
        ({"key_padding": torch.ones(1, 3)}, "key_padding"),
        ({"documents": torch.ones(3, dtype=torch.long)}, "documents"),
        ({"documents": torch.ones(1, 1, 3, dtype=torch.long)}, "documents"),
        ({"documents": torch.ones(1, 3)}, "documents"),
        ({"documents": torch.ones(1, 3, dtype=torch.bool)}, "documents"),
    ],
    ids=str,
)
def test_a_wrong_field_is_the_one_named(wrong, reason):
    with pytest.raises(RequestError) as caught:
        Mask(**wrong)
    assert len(caught.value.reasons) == 1
    assert caught.value.reasons[0].startswith(reason)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_documents_take_any_integer_type(dtype):
    assert Mask(documents=IDS.to(dtype)).grid(4) == Mask(documents=IDS).grid(4)


def test_lengths_and_rows_that_do_not_fit():
    for field, held in (("key_padding", PADDING), ("documents", IDS)):
        mask = Mask(**{field: held})
        mask.check_lengths(4)
        mask.check_lengths(4, batch=2)
        Mask(**{field: held[:1]}).check_lengths(4, batch=3)
        for n_keys, batch, reason in (
            (3, None, "covers 4 tokens, but there are 3 keys"),
            (5, None, "covers 4 tokens, but there are 5 keys"),
            (4, 1, "has 2 rows, but the batch has 1"),
            (4, 3, "has 2 rows, but the batch has 3"),
        ):
            with pytest.raises(RequestError) as caught:
                mask.check_lengths(n_keys, batch)
            assert caught.value.reasons == [f"{field} {reason}"]
        with pytest.raises(RequestError, match="does not fit"):
            mask.dense(4, 5)


def test_contiguous_documents_in_every_row():
    for ids, right in (([[0, 0, 1]], True), ([[0, 1, 0]], False), ([[0, 0, 1], [0, 1, 0]], False), ([[3], [3]], True)):
        mask = Mask(documents=torch.tensor(ids))
        assert mask.contiguous_documents is right
        mask.documents.zero_()
        assert mask.contiguous_documents, "what was found out of the old ids"
    assert Mask().contiguous_documents is True


def test_device_is_that_of_the_tensors():
    meta = torch.device("meta")
    assert Mask().device is None
    assert Mask(key_padding=PADDING.to(meta), documents=IDS).device == meta
    assert Mask(documents=IDS.to(meta)).device == meta
    assert Mask(key_padding=PADDING.to(meta)).dense(4, 4).device == meta
    assert Mask().dense(2, 2, device="meta").device == meta
    assert Mask().at(torch.zeros(1, device=meta), torch.zeros(1, device=meta)).device == meta
    assert translate.sdpa_arguments(Mask(window=2), 2, 2, meta)[0].device == meta


def test_a_mask_is_a_frozen_value_without_tensors_in_its_name():
    mask = Mask(window=2, key_padding=PADDING, documents=IDS)
    assert repr(mask) == "Mask(causal=True, window=2, sinks=0, prefix=0)"
    assert mask != Mask(window=2, key_padding=PADDING, documents=IDS), "by identity: tensors do not compare to a bool"
    assert {mask: 1}[mask] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        mask.window = 3
    with pytest.raises(TypeError):
        Mask(_contiguous=True)


def test_sdpa_gets_no_tensor_where_it_needs_none():
    assert translate.sdpa_arguments(Mask(), 4, 4, CPU) == (None, True)
    assert translate.sdpa_arguments(Mask(), 1, 4, CPU) == (None, False)
    assert translate.sdpa_arguments(Mask(causal=False), 3, 4, CPU) == (None, False)
    assert translate.sdpa_arguments(Mask(causal=False, prefix=2, sinks=1), 4, 4, CPU) == (None, False)
    for mask, n_queries in ((Mask(), 2), (Mask(window=2), 4), (Mask(window=2), 1), (Mask(prefix=1), 4)):
        given, is_causal = translate.sdpa_arguments(mask, n_queries, 4, CPU)
        assert not is_causal
        assert torch.equal(given, mask.dense(n_queries, 4))


@pytest.mark.parametrize("n_queries", [1, 3, 4, 5])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 2])
def test_xformers(n_queries, causal, window):
    pytest.importorskip("xformers")
    mask = Mask(causal=causal, window=window)
    bias = translate.xformers_bias(mask, n_queries, 4)
    seen = torch.ones(n_queries, 4, dtype=torch.bool) if bias is None else bias.materialize((n_queries, 4)) == 0
    assert torch.equal(seen, mask.dense(n_queries, 4)[0, 0])
    assert (bias is None) is (not causal and window is None)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 2])
def test_xformers_documents(causal, window):
    pytest.importorskip("xformers")
    for ids, batch in ((IDS, 2), (IDS[:1], 1), (IDS[:1], 3)):
        mask = Mask(causal=causal, window=window, documents=ids)
        packed = translate.xformers_bias(mask, 4, 4, batch).materialize((4 * batch, 4 * batch)) == 0
        right = mask.dense(4, 4).expand(batch, 1, 4, 4)
        assert torch.equal(packed, torch.block_diag(*(m[0].int() for m in right)).bool())
    one = translate.xformers_bias(Mask(documents=IDS[:1]), 4, 4)
    assert one.materialize((4, 4)).shape == (4, 4), "one sequence unless said otherwise"


def test_xformers_says_what_it_lacks():
    pytest.importorskip("xformers")
    with pytest.raises(ValueError, match=r"no bias object for \['key_padding', 'prefix'\]"):
        translate.xformers_bias(Mask(prefix=1, window=2, key_padding=PADDING), 4, 4)
    for ids, n_queries in ((IDS[:1], 3), (IDS[:1], 5), (torch.tensor([[0, 1, 0, 1]]), 4)):
        with pytest.raises(ValueError, match="contiguous ids"):
            translate.xformers_bias(Mask(documents=ids), n_queries, 4)
