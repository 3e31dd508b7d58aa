"""Queries brought to the blocks they chose: where each pair is computed, against a loop; the conformance suite does the rest."""

import pytest
import torch

from attnzoo import Mask
from attnzoo.kernels.chosen import attend_chosen, gather_queries, take


def choices(seed, n_queries=13, m=3, n_blocks=6):
    """(1, 2, Tq, m): distinct blocks for each query, some missing."""
    g = torch.Generator().manual_seed(seed)
    chosen = torch.rand(1, 2, n_queries, n_blocks, generator=g).argsort(-1)[..., :m]
    return chosen.masked_fill(torch.rand(chosen.shape, generator=g) < 0.3, -1)


@pytest.mark.parametrize("r", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_every_pair_has_a_row_of_its_own_in_a_tile_of_its_block(r, seed):
    chosen = choices(seed)
    tiles = gather_queries(chosen, r, 6)
    n = tiles.block.shape[2]
    assert tiles.query.shape == (1, 2, n, r)
    for head in range(2):
        taken = set()
        for query in range(13):
            for slot in range(3):
                if (block := chosen[0, head, query, slot].item()) >= 0:
                    place = tiles.place[0, head, query, slot].item()
                    assert tiles.block[0, head, place // r] == block
                    assert tiles.query[0, head].flatten()[place] == query
                    taken.add(place)
        assert len(taken) == (chosen[0, head] >= 0).sum()


def test_what_later_queries_choose_moves_no_earlier_pair():
    one, other = choices(0), choices(1)
    for cut in range(13):
        other[:, :, :cut] = one[:, :, :cut]
        first, second = (gather_queries(t, 2, 6).place[:, :, :cut] for t in (one, other))
        assert torch.equal(first.masked_fill(one[:, :, :cut] < 0, 0), second.masked_fill(one[:, :, :cut] < 0, 0))


def test_take_reads_the_key_head_of_each_query_head():
    t, index = torch.randn(2, 2, 5, 3), torch.randint(5, (2, 4, 7))
    expected = torch.stack([torch.stack([t[b, h // 2, index[b, h]] for h in range(4)]) for b in range(2)])
    assert torch.equal(take(t, index), expected)


def test_a_query_that_chose_nothing_is_exactly_0():
    q, k, v = (torch.randn(1, 2, 13, 4, requires_grad=True) for _ in range(3))
    chosen = torch.arange(13).view(1, 1, 13, 1).expand(1, 2, -1, -1) // 4
    chosen = chosen.masked_fill(torch.arange(13).view(1, 1, -1, 1) % 3 == 0, -1)
    out = attend_chosen(q, k, v, Mask(), None, chosen, block_size=4, scale=0.5)
    assert not out[:, :, ::3].any()
    (gradient,) = torch.autograd.grad(out.square().sum(), q)
    assert not gradient[:, :, ::3].any()
    assert gradient.isfinite().all()
