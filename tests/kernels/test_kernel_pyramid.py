"""Which nodes a query reads: each token up to it exactly once, the far ones in larger nodes; and what a cache keeps of them."""

import pytest
import torch

from attnzoo import Mask, build
from attnzoo.kernels.pyramid import build as pyramid
from attnzoo.kernels.pyramid import levels_of, reads


@pytest.mark.parametrize("c", [2, 4, 6])
@pytest.mark.parametrize("n_blocks", [1, 2, 3, 8, 13])
def test_every_token_up_to_the_query_is_read_once(c, n_blocks):
    levels = levels_of(n_blocks * c, c)
    blocks, last = reads(torch.arange(n_blocks), c, levels)
    for n in range(n_blocks):
        read = []
        for place in range(levels + 2):
            size = 2 ** max(place - 1, 0)
            for node, end in enumerate(last[n, place].tolist()):
                if end >= 0:
                    start = (blocks[n, place].item() * c + node) * size
                    assert end == start + size - 1
                    assert size == 1 or end < n * c, "a node lies wholly before the query's block"
                    read += range(start, start + size)
        assert sorted(read) == list(range((n + 1) * c))


def test_nodes_are_means_of_the_real_tokens_of_the_last_ones_document():
    c, n = 2, 17
    real, documents = torch.rand(1, n) > 0.3, torch.tensor([[0] * 7 + [1] * 10])
    k, v = torch.randn(1, 1, n, 3), torch.randn(1, 1, n, 3)
    nodes, levels = pyramid(k, v, c, Mask(key_padding=real, documents=documents))
    assert levels == levels_of(n, c) == 3
    at = 18  # level 0, padded to whole blocks
    for level in range(1, levels + 1):
        size = 2**level
        for node in range(c * (8 >> level)):
            inside = [
                t
                for t in range(node * size, (node + 1) * size)
                if real[0, t] and documents[0, t] == documents[0, (node + 1) * size - 1]
            ]
            assert nodes.held[0, at] == len(inside)
            if inside:
                torch.testing.assert_close(nodes.k[0, 0, at], k[0, 0, inside].mean(0))
                torch.testing.assert_close(nodes.v[0, 0, at], v[0, 0, inside].mean(0))
            at += 1
    assert at == nodes.k.shape[2]


def test_a_cache_of_any_length_holds_two_blocks_a_level():
    attn = build("hierarchical", n_heads=4, n_kv_heads=2, head_dim=8, block=4)
    for n, levels in ((1, 0), (8, 0), (9, 1), (16, 1), (17, 2), (4096, 9)):
        cache = attn.new_cache(3, n, dtype=torch.bfloat16)
        slots = 2 * 4 * (levels + 1)
        assert cache.nbytes == (2 * 3 * 2 * slots * 8 + 3 * slots) * 4 == attn.cache_bytes(3, n, torch.bfloat16)
