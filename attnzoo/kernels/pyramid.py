"""Keys and values pooled into ever larger nodes, and what each query reads of them. Shapes: see `attnzoo.shapes`.

Level 0 are the tokens; a node of level l is the mean of 2^l of them, and a block is c nodes of one level, c even. A query in
block n of level 0 reads there blocks n and n - 1, and of every level l ≥ 1 block (n >> l) - 1, as far as no finer level
reaches: each token up to the query's own exactly once, in at most c nodes a level. A node stands for as many keys as it
holds, so that the logarithm of that number is added to its score.

A node holds the real tokens of the document of its last token: documents being contiguous, what a query sees of a node is
all that it holds, or nothing. Source of the scheme: H-Transformer-1D, arXiv:2107.11906.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.cache import held_bytes
from attnzoo.kernels.blocks import Cut, attend_read
from attnzoo.kernels.gates import wide
from attnzoo.masks import Mask


class Nodes(NamedTuple):
    """Mean keys (B, G, n, D), mean values (B, G, n, Dv) and how many tokens each ``held`` (B or 1, n), in float32 or float64."""

    k: Tensor
    v: Tensor
    held: Tensor

    def at(self, index: Tensor | slice) -> Nodes:
        return Nodes(self.k[:, :, index], self.v[:, :, index], self.held[:, index])


def tokens(k: Tensor, v: Tensor, mask: Mask, start: int = 0) -> Nodes:
    """Level 0: the tokens from ``start`` on."""
    k, v = k.to(wide(k.dtype)), v.to(wide(v.dtype))
    fields = [t[:, start : start + k.shape[2]] for t in (mask.key_padding, mask.documents) if t is not None]
    held = k.new_ones(max([1, *(t.shape[0] for t in fields)]), k.shape[2])
    return Nodes(k, v, held if mask.key_padding is None else held * fields[0])


def coarser(nodes: Nodes, last: Tensor, documents: Tensor | None) -> Nodes:
    """Neighbours in pairs, an even number of nodes (n,) whose last tokens are ``last`` (n,): n/2 nodes of the next level."""
    k, v, held = nodes.k.unflatten(2, (-1, 2)), nodes.v.unflatten(2, (-1, 2)), nodes.held.unflatten(1, (-1, 2))
    if documents is not None:
        ids = documents[:, last].unflatten(1, (-1, 2))
        held = held * (ids == ids[..., 1:])
    total = held.sum(-1)
    share = (held / total.clamp(min=1)[..., None])[:, None, :, None]  # (B or 1, 1, n/2, 1, 2)
    with torch.autocast(k.device.type, enabled=False):  # means keep the digits of the nodes
        return Nodes((share @ k).squeeze(3), (share @ v).squeeze(3), total)


def build(k: Tensor, v: Tensor, c: int, mask: Mask) -> tuple[Nodes, int]:
    """All nodes that some query reads, level after level, each in whole blocks; and the number of levels above 0."""
    before = (k.shape[2] - 1) // c  # blocks before the last query's own
    levels = [tokens(k, v, mask)]
    while before >> len(levels):
        level, n = len(levels), 2 * c * (before >> len(levels))
        last = ((torch.arange(n, device=k.device) + 1) << (level - 1)) - 1
        levels.append(coarser(levels[-1].at(slice(n)), last, mask.documents))
    own, rest = levels[0], -k.shape[2] % c
    levels[0] = Nodes(F.pad(own.k, (0, 0, 0, rest)), F.pad(own.v, (0, 0, 0, rest)), F.pad(own.held, (0, rest)))
    k, v = (torch.cat([nodes[side] for nodes in levels], 2) for side in (0, 1))
    return Nodes(k, v, torch.cat([nodes.held for nodes in levels], 1)), len(levels) - 1


def reads(n: Tensor, c: int, levels: int) -> tuple[Tensor, Tensor]:
    """What the queries of the blocks n (N,) read: the block numbers (N, levels + 2), each within its level, two of level 0 and
    one of each above it; and the last token of each of their nodes (N, levels + 2, c), -1 for one that is not read."""
    blocks = torch.stack([n, n - 1, *((n >> level) - 1 for level in range(1, levels + 1))], 1)
    node = blocks[..., None] * c + torch.arange(c, device=n.device)
    level = torch.arange(levels + 2, device=n.device).sub(1).clamp(min=0)
    last = ((node + 1) << level[:, None]) - 1
    finer = (level - 1).clamp(min=0)  # begins at its block (n >> finer) - 1
    begin = (((n[:, None] >> finer) - 1) * c) << finer
    begin = torch.where(level > 0, begin, torch.iinfo(torch.long).max)
    return blocks, last.masked_fill((node < 0) | (last >= begin[..., None]), -1)


def attend_nodes(
    q: Tensor, nodes: Nodes, where: Tensor, last: Tensor, first: int, n_keys: int, mask: Mask, *, scale: float,
    dropout: float,
) -> tuple[Tensor, str]:  # fmt: skip
    """Softmax of the queries (B, H, Tq, D), the last at token n_keys - 1, over the nodes they read.

    Args:
        nodes: in blocks of c.
        where: (N, m), which of those blocks the queries of each block from ``first`` on read; -1 for none.
        last: (N, m, c), as `reads` gives it.

    Returns:
        (B, H, Tq, Dv) and the name of the kernel that ran. Half-precision queries are raised to float32: the logarithms
        of the counts need its digits.
    """
    n_blocks, _, c = last.shape
    i = torch.arange(first * c, (first + n_blocks) * c, device=q.device).view(n_blocks, c, 1)
    j = last.flatten(1)[:, None]  # (N, 1, m·c)
    visible = ((j >= 0) & (j <= i))[None]
    if mask.documents is not None:
        top = mask.documents.shape[1] - 1
        visible = visible & (mask.documents[:, i.clamp(max=top)] == mask.documents[:, j.clamp(0, top)])
    held = nodes.held.unflatten(1, (-1, c))[:, where.clamp(min=0)].flatten(2)[:, :, None]  # (B or 1, N, 1, m·c)
    scores = held.log().masked_fill(~visible, -torch.inf)[:, :, None]
    cut = Cut(q.shape[2], n_keys - first * c, c)
    with torch.autocast(q.device.type, enabled=False):
        q = q.to(nodes.k.dtype)
        return attend_read(q, nodes.k, nodes.v, scores, blocks=where, cut=cut, scale=scale, dropout=dropout)


class PyramidCache:
    """The last two blocks of every level: node m of level l lies in slot m mod 2c of that level's 2c.

    ``length`` counts the tokens seen, ``max_tokens`` bounds them and so the levels.
    """

    def __init__(self, nodes: Nodes, c: int, max_tokens: int) -> None:
        self.nodes, self.c, self.max_tokens, self.length = nodes, c, max_tokens, 0

    @property
    def nbytes(self) -> int:
        return held_bytes(self.nodes.k, self.nodes.v) + self.nodes.held.nbytes

    @property
    def levels(self) -> int:
        """Above level 0."""
        return levels_of(self.max_tokens, self.c)

    def append(self, k: Tensor, v: Tensor, mask: Mask) -> None:
        """Remember tokens of one block, and what they finish of every level."""
        new = tokens(k, v, mask, self.length)
        start, self.length = self.length, self.length + k.shape[2]
        self._store(0, start, new)
        for level in range(1, self.levels + 1):
            first, end = start >> level, self.length >> level
            if first == end:
                break
            fine = torch.arange(2 * first, 2 * end, device=k.device)
            slots, last = self._slots(level - 1, fine), ((fine + 1) << (level - 1)) - 1
            self._store(level, first, coarser(self.nodes.at(slots), last, mask.documents))

    def where(self, blocks: Tensor) -> Tensor:
        """The place of each block that `reads` gives among the blocks held."""
        level = torch.arange(blocks.shape[1], device=blocks.device).sub(1).clamp(min=0)
        return (2 * level + blocks % 2).masked_fill(blocks < 0, -1)

    def _slots(self, level: int, node: Tensor) -> Tensor:
        return 2 * self.c * level + node % (2 * self.c)

    def _store(self, level: int, first: int, nodes: Nodes) -> None:
        slots = self._slots(level, torch.arange(first, first + nodes.k.shape[2], device=nodes.k.device))
        self.nodes.k[:, :, slots] = nodes.k
        self.nodes.v[:, :, slots] = nodes.v
        self.nodes.held[:, slots] = nodes.held


def levels_of(n_tokens: int, c: int) -> int:
    """Levels above 0 that the last of n tokens reads."""
    return max(((n_tokens - 1) // c).bit_length() - 1, 0)
