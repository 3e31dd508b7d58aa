"""Softmax attention in which each query names the blocks of keys that it reads. Shapes: see `attnzoo.shapes`.

Queries that read one block come together in tiles of up to c rows, each tile with that block alone; a query's partial
softmaxes are then merged by their normalisers. Time and memory O(Tq·m·c) for m blocks a query, in products of whole
tiles, and no key is copied once a query. Sources: MoBA, arXiv:2502.13189, algorithm 1; FlashAttention, arXiv:2205.14135.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.contract import ScoreBias
from attnzoo.masks import Mask


class Tiles(NamedTuple):
    """Where each pair of a query and a block it reads is computed: n tiles of r rows.

    Args:
        block: (B, H, n), the block a tile reads.
        query: (B, H, n, r), the query in each row; 0 in rows that stay empty.
        place: (B, H, Tq, m), the row of each pair among the n·r; 0 where no block is named.
    """

    block: Tensor
    query: Tensor
    place: Tensor


def attend_chosen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: ScoreBias | None,
    chosen: Tensor,
    *,
    block_size: int,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Softmax of each query over the keys of its blocks that lie up to it: (B, H, Tq, Dv).

    Args:
        q, k, v: (B, H, Tq, D), (B, G, Tk, D), (B, G, Tk, Dv) with Tq ≤ Tk, the last query at the last key.
        mask: causal, with key padding and documents at most.
        chosen: (B, H, Tq, m), numbers of key blocks, none twice for a query; -1 for none.
        block_size: c.
    """
    c, n_queries, n_keys = block_size, q.shape[2], k.shape[2]
    n_blocks = -(-n_keys // c)
    tiles = gather_queries(chosen, min(c, n_queries), n_blocks)
    k, v = (F.pad(t, (0, 0, 0, -n_keys % c)).unflatten(2, (n_blocks, c)) for t in (k, v))
    i = tiles.query[..., None] + (n_keys - n_queries)  # (B, H, n, r, 1)
    j = (tiles.block[..., None] * c + torch.arange(c, device=q.device))[..., None, :]  # (B, H, n, 1, c)
    visible = j <= i
    if mask.key_padding is not None:
        visible = visible & _at(mask.key_padding, j)
    if mask.documents is not None:
        visible = visible & (_at(mask.documents, i) == _at(mask.documents, j))
    scores = (take(q, tiles.query) * scale) @ take(k, tiles.block).mT
    scores = scores.float() if scores.dtype.itemsize == 2 else scores
    if bias is not None:
        scores = scores + torch.stack([bias.block(i[:, h], j[:, h])[h] for h in range(q.shape[1])], 1)
    parts = partial_softmax(scores, visible, take(v, tiles.block), dropout)
    outs, totals, tops = (take(t.flatten(2, 3), tiles.place) for t in parts)  # (B, H, Tq, m, ·)
    none = (chosen < 0)[..., None]
    tops = tops.masked_fill(none, torch.finfo(tops.dtype).min)
    # a difference of maxima, not of logarithms of sums, which large scores leave few digits
    share = totals.masked_fill(none, 0.0) * (tops - tops.amax(-2, keepdim=True)).exp()
    total = share.sum(-2, keepdim=True)
    share = share / total.masked_fill(total == 0, 1.0)
    return (share.mT @ outs.to(share.dtype)).squeeze(-2).to(v.dtype)


def partial_softmax(scores: Tensor, visible: Tensor, v: Tensor, dropout: float) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax over some of the keys, to be merged with others: its output (…, Dv), the sum (…, 1) of exp(scores - top), and
    top (…, 1), the largest score. A row that sees nothing gives an output and a sum of 0."""
    scores = scores.masked_fill(~visible, -torch.inf)
    top = scores.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    e = (scores - top).exp()
    total = e.sum(-1, keepdim=True)
    return (F.dropout(e.to(v.dtype), dropout) @ v) / total.masked_fill(total == 0, 1.0), total, top


def gather_queries(chosen: Tensor, r: int, n_blocks: int) -> Tiles:
    """Tiles of r rows for the blocks chosen (B, H, Tq, m) among ``n_blocks``.

    Tiles are numbered in the order in which their first query comes, and filled in the order of the queries: where a pair
    is computed does not depend on what later queries choose, so that their tokens leave it the same bit for bit.
    """
    m = chosen.shape[3]
    wanted = chosen.flatten(2)  # (B, H, P): pairs in the order of the queries
    pairs = wanted.shape[2]
    n = min(pairs, pairs // r + n_blocks)  # every block may have one tile that is not full
    block, order = wanted.sort(dim=-1, stable=True)
    at = torch.arange(pairs, device=chosen.device)
    first = F.pad(block[..., 1:] != block[..., :-1], (1, 0), value=True)
    rank = at - torch.where(first, at, 0).cummax(-1).values  # among the pairs of its block
    row, real = rank % r, block >= 0
    opens = torch.zeros_like(order).scatter(-1, order, ((row == 0) & real).long())
    tile = (
        (opens.cumsum(-1) - 1).gather(-1, order).gather(-1, at - row)
    )  # the number of the tile that its first pair opened
    place = torch.where(real, tile * r + row, n * r)  # pairs without a block share a row past the last

    blank = wanted.new_zeros(*wanted.shape[:2], n * r + 1)
    query = blank.scatter(-1, place, order // m)[..., :-1].unflatten(-1, (n, r))
    read = blank.scatter(-1, place, block)[..., :-1].unflatten(-1, (n, r))[..., 0]
    back = torch.empty_like(order).scatter(-1, order, place.masked_fill(~real, 0))
    return Tiles(read, query, back.view_as(chosen))


def take(t: Tensor, index: Tensor) -> Tensor:
    """Entries of t (B, G, n, *rest) along its third axis, by index (B, H, *S), head h from t's h // (H/G): (B, H, *S, *rest)."""
    batch, heads, n = t.shape[:3]
    base = torch.arange(batch * heads, device=t.device).view(batch, heads) * n
    base = base.repeat_interleave(index.shape[1] // heads, 1)[..., None]
    flat = (index.flatten(2) + base).flatten()
    return t.flatten(0, 2).index_select(0, flat).view(*index.shape, *t.shape[3:])


def _at(values: Tensor, positions: Tensor) -> Tensor:
    """values (B or 1, T) read at positions (B, …); past the last one whatever it holds."""
    flat = positions.flatten(1).clamp(max=values.shape[1] - 1)
    return values.expand(positions.shape[0], -1).gather(1, flat).view_as(positions)
