"""Summaries of past blocks and the choice by them, against loops."""

import torch

from attnzoo import Mask, build
from attnzoo.kernels import summaries
from attnzoo.kernels.summaries import Past, among_largest, attend_summaries, choose, largest, pool


def test_largest_takes_the_first_among_equals_and_none_of_what_is_not_there():
    low = -torch.inf
    scores = torch.tensor([[1.0, 3, 3, 2], [5, 5, 5, 5], [low, 2, low, low], [low] * 4])
    found = largest(scores, 3)
    assert found.tolist() == [[1, 2, 3], [0, 1, 2], [1, -1, -1], [-1, -1, -1]]
    by_counting = among_largest(scores, scores > low, 3)
    for row, picked in zip(by_counting, found.tolist(), strict=True):
        assert row.nonzero().flatten().tolist() == sorted(at for at in picked if at >= 0)


def test_pooling_takes_in_the_real_keys_of_the_last_tokens_document():
    real = torch.tensor([[True, False, True, True, True, True, True, True, True]])
    documents = torch.tensor([[0, 0, 0, 0, 0, 0, 1, 1, 1]])
    past = Past(Mask(key_padding=real, documents=documents), 9, 4)
    t, logits = torch.randn(1, 2, 9, 3), torch.randn(2, 4)
    assert past.members().tolist() == [[[True, False, True, True], [False, False, True, True]]]
    for own in (None, logits):
        found = pool(t[:, :, :8], 4, past.members(), own)
        for head in range(2):
            e = torch.ones(4) if own is None else own[head].exp()
            for block, kept in ((0, [0, 2, 3]), (1, [2, 3])):
                share = e[kept] / e[kept].sum()
                expected = (share[:, None] * t[0, head, [4 * block + at for at in kept]]).sum(0)
                torch.testing.assert_close(found[0, head, block].float(), expected)
    seen = past.seen_from(torch.arange(9))
    assert seen[0].tolist() == [[False] * 2] * 4 + [[True, False]] * 2 + [[False, False]] * 2 + [[False, True]]


def test_a_block_whose_keys_are_all_padding_is_never_chosen():
    real = torch.arange(12)[None] >= 4
    past = Past(Mask(key_padding=real), 12, 4)
    k = torch.randn(1, 1, 12, 3)
    chosen = choose(
        torch.randn(1, 1, 12, 3), pool(k, 4, past.members()), past, 2, scale=1.0, affinity=lambda s, seen: s.flatten(1, 2)
    )  # fmt: skip
    assert chosen[0, 0, -1].tolist() == [2, 1, -1]


def test_parts_change_nothing(monkeypatch):
    attn = build("nsa", n_heads=4, n_kv_heads=2, head_dim=8, d_model=6, block=4, selected=2, window=5)
    q, k, v = (torch.randn(2, h, 45, 8, requires_grad=True) for h in (4, 2, 2))
    x = torch.randn(2, 45, 6, requires_grad=True)
    for mask in (Mask(), Mask(documents=torch.arange(45)[None] // 17)):
        whole = attn(q, k, v, mask, x=x)
        with monkeypatch.context() as patch:
            patch.setattr(summaries, "ROWS", 7)
            patch.setattr(summaries, "LARGEST_PART", 8 * 2 * 4 * 11 * 6)  # six queries at a time
            parts = attn(q, k, v, mask, x=x)
        torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-5)
        found, expected = (torch.autograd.grad(out.square().sum(), (q, k, v, x)) for out in (parts, whole))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_no_summary_is_no_output_but_has_a_gradient():
    q, k, v = torch.randn(1, 4, 3, 8), *(torch.zeros(1, 2, 0, 8, requires_grad=True) for _ in range(2))
    out = attend_summaries(q, k, v, Past(Mask(), 3, 4), scale=1.0)
    assert out.shape == q.shape
    assert not out.any()
    assert out.requires_grad


def test_the_cache_pools_a_block_when_it_is_finished():
    """5 + 1 + 1 + 6 tokens: blocks end inside a chunk, with a single token, and at a chunk's end."""
    attn = build("nsa", n_heads=2, head_dim=4, d_model=6, block=4)
    with torch.no_grad():
        attn.logits.normal_()
        k, v = torch.randn(2, 1, 2, 13, 4)
        real = (torch.arange(13) % 3 != 1)[None]
        cache, start = attn.new_cache(1, 20), 0
        for n in (5, 1, 1, 6):
            rows = slice(start, start + n)
            attn.extend(torch.randn(1, 2, n, 4), k[:, :, rows], v[:, :, rows], cache,
                        Mask(key_padding=real[:, : start + n]), x=torch.randn(1, n, 6))  # fmt: skip
            start += n
        whole = attn.summarise(k[:, :, :12], v[:, :, :12], Past(Mask(key_padding=real), 13, 4).members())
    for held, expected in zip(cache.summaries, whole, strict=True):
        torch.testing.assert_close(held[:, :, :3], expected)
        assert not held[:, :, 3:].any()
