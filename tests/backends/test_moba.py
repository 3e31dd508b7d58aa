"""The choice of blocks, against loops; its cost; what its cache holds. The conformance suite holds the rest to the definition."""

from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo import Mask
from attnzoo.checks.cost import CountingMode
from attnzoo.errors import Refused, RequestError


def make(heads=2, kv_heads=None, dim=4, **options):
    return attnzoo.build("moba", n_heads=heads, n_kv_heads=kv_heads, head_dim=dim, **options)


def blocks_read(attn, q, k):
    """For each head and query, the blocks whose keys get weight, by reading the identity."""
    n = k.shape[2]
    out = attn(q, k, torch.eye(n).expand(1, k.shape[1], n, n))[0]
    return (out > 0).unflatten(2, (-1, attn.block)).any(3)


def test_each_query_head_reads_its_own_block_and_the_k_best_means():
    torch.manual_seed(0)
    attn = make(heads=4, kv_heads=2, block=4, topk=2)
    q, k = torch.randn(1, 4, 32, 4), torch.randn(1, 2, 32, 4)
    read = blocks_read(attn, q, k)
    for head in range(4):
        means = k[0, head // 2].double().unflatten(0, (8, 4)).mean(1)
        for i in range(32):
            affinity = (means[: i // 4] @ q[0, head, i].double()).tolist()
            best = sorted(range(i // 4), key=lambda b: -affinity[b])[:2]
            assert set(read[head, i].nonzero().flatten().tolist()) == {i // 4, *best}
    assert not torch.equal(read[0], read[1]), "heads that share keys choose for themselves"


def test_equal_affinities_go_to_the_earlier_block():
    attn = make(block=2, topk=1)
    read = blocks_read(attn, torch.zeros(1, 2, 8, 4), torch.randn(1, 2, 8, 4))
    assert read[0, -1].tolist() == [True, False, False, True]


def test_a_decoded_token_chooses_as_the_parallel_pass_does():
    """In bfloat16 affinities are near one another: choices made in it would differ with the shape of the product."""
    torch.manual_seed(1)
    attn = make(block=4, topk=2, dim=16)
    q, k = (torch.randn(1, 2, 96, 16).bfloat16() for _ in range(2))
    eye = torch.eye(96).bfloat16().expand(1, 2, 96, 96)
    whole, cache = attn(q, k, eye), attn.new_cache(1, 96, dtype=torch.bfloat16, value_dim=96)
    steps = [attn.extend(*(t[:, :, i : i + 1] for t in (q, k, eye)), cache) for i in range(96)]
    assert torch.equal(torch.cat(steps, 2) > 0, whole > 0)


@pytest.mark.parametrize("name", ["moba", "nsa"])
def test_work_and_memory_grow_as_the_length_at_usual_lengths(name):
    """The affinities are T²/c: small beside T·k·c until T is far beyond c². A full matrix would give 4 and 4."""
    attn, work, peak = attnzoo.build(name, n_heads=2, head_dim=16, d_model=32, block=16), [], []
    for n in (512, 1024):
        q, k, v = (torch.randn(1, 2, n, 16, requires_grad=True) for _ in range(3))
        x = torch.randn(1, n, 32)
        with CountingMode() as counting:
            attn(q, k, v, x=x).sum().backward()
        work.append(counting.work)
        peak.append(counting.peak)
    assert work[1] / work[0] < 2.3
    assert peak[1] / peak[0] < 2.2


def test_the_cache_holds_a_mean_key_for_each_finished_block_in_float64():
    cache = make(heads=4, kv_heads=2, block=8).new_cache(3, 50, dtype=torch.bfloat16)
    assert cache.nbytes == 2 * 3 * 2 * 50 * 4 * 2 + 3 * 2 * 6 * 4 * 8


def test_wrong_options_are_named_together():
    with pytest.raises(RequestError, match=r"block=0[\s\S]*topk=-1"):
        make(block=0, topk=-1)


def test_documents_that_are_not_contiguous_are_refused():
    q = torch.randn(1, 2, 4, 4)
    with pytest.raises(Refused, match="contiguous"):
        make()(q, q, q, Mask(documents=torch.tensor([[0, 1, 0, 1]])))
    with pytest.raises(Refused, match="'window'"):
        make()(q, q, q, Mask(window=2))
