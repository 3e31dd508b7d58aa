"""Queries brought to the blocks they chose: where each pair is computed, against a loop; the conformance suite does the rest."""

import pytest
import torch
from largest import Largest

import attnzoo.kernels.chosen
from attnzoo import Mask
from attnzoo.checks.cases import DistanceBias
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


def attended(n, dtype, m=3, c=8):
    """Leaves (1, 2, n, 16) and what they give, each query reading its own block, the first, and one more."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 16, generator=g, dtype=torch.float64).to(dtype).requires_grad_() for _ in range(3))
    own = torch.arange(n).view(1, 1, n, 1) // c
    chosen = (own - torch.arange(m)).clamp(min=-1).expand(1, 2, -1, -1)
    chosen = torch.where(
        own < m, chosen, torch.cat([own.expand(1, 2, -1, -1), own.new_zeros(1, 2, n, 1), chosen[..., 2:]], -1)
    )
    return (q, k, v), attend_chosen(q, k, v, Mask(), None, chosen, block_size=c, scale=0.25)


def test_the_gradient_in_parts_is_the_derivative(monkeypatch):
    monkeypatch.setattr(attnzoo.kernels.chosen, "LARGEST_PART", 2**12)  # one tile at a time
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 13, 3, generator=g, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = DistanceBias(2, learned=True).double()
    mask = Mask(documents=torch.arange(13)[None] // 7)

    def attend(q, k, v, _):
        return attend_chosen(q, k, v, mask, bias, choices(0, n_blocks=4).clamp(max=3), block_size=4, scale=0.5)

    assert torch.autograd.gradcheck(attend, (q, k, v, bias.slopes))


def test_dropout_is_the_same_when_computed_again():
    """The output is linear in v, so that sum_v dO/dv · v = O for the weights dropped forward."""
    q, k, v = (torch.randn(1, 2, 40, 4, dtype=torch.float64) for _ in range(3))
    chosen = torch.arange(40).view(1, 1, 40, 1).expand(1, 2, -1, -1) // 8
    out = attend_chosen(q, k, v.requires_grad_(), Mask(), None, chosen, block_size=8, scale=0.5, dropout=0.5)
    (gradient,) = torch.autograd.grad(out.sum(), v)
    torch.testing.assert_close((gradient * v).sum(), out.sum())


def test_between_forward_and_backward_nothing_but_the_output_is_kept():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        leaves, out = attended(512, torch.float32)
    assert sum(t.nbytes for t in kept) <= sum(t.nbytes for t in leaves) + out.nbytes + 2 * out[..., :1].nbytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_a_key_that_many_read_add_up_in_float32(dtype, monkeypatch):
    """All queries read block 0. Added up in the half type, a sum of n terms loses up to n · eps / 2; rounded once, eps / 2.
    What each term has lost before is independent of the others and grows with their root only. One tile at a time, because
    torch adds what one call brings in float32 anyway."""
    monkeypatch.setattr(attnzoo.kernels.chosen, "LARGEST_PART", 2**12)
    n, exact, found = 2048, [], []
    for kind, into in ((torch.float64, exact), (dtype, found)):
        leaves, out = attended(n, kind)
        into += torch.autograd.grad(out.sum(), leaves)[2].double()[:, :, :8].flatten().tolist()
    exact, found = torch.tensor(exact), torch.tensor(found)
    assert (found - exact).norm() < torch.finfo(dtype).eps * exact.norm()


def test_one_query_copies_the_keys_it_reads_and_no_other():
    q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1100, 8)[:, :, :1001]
    chosen = torch.tensor([3, -1, 62]).expand(1, 2, 1, 3)
    with Largest() as largest:
        attend_chosen(q, k, k, Mask(), None, chosen, block_size=16, scale=1.0)
    assert largest.numbers == 2 * 3 * 16 * 8
