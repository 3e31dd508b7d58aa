"""Softmax attention in which each query names the blocks of keys that it reads. Shapes: see `attnzoo.shapes`.

Queries that read one block come together in tiles of up to c rows, each tile with that block alone; a query's partial
softmaxes are then merged by their normalisers. Time and memory O(Tq·m·c) for m blocks a query, in products of whole
tiles, and no key is copied once a query. Sources: MoBA, arXiv:2502.13189, algorithm 1; FlashAttention, arXiv:2205.14135.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import get_device_states, set_device_states

from attnzoo.contract import ScoreBias
from attnzoo.kernels.blocks import LARGEST_PART
from attnzoo.kernels.derivatives import plainly, recorded_gradients
from attnzoo.kernels.gates import wide
from attnzoo.kernels.sums import add_rows
from attnzoo.masks import Mask
from attnzoo.softmax import products


class Tiles(NamedTuple):
    """Where each pair of a query and a block it reads is computed: n tiles of r rows.

    Args:
        block: (B, H, n), the block a tile reads.
        query: (B, H, n, r), the query in each row; -1 in rows that stay empty.
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
    if n_queries == 1:
        return _one_query(q, k, v, mask, bias, chosen, c, scale, dropout)
    n_blocks = -(-n_keys // c)
    tiles = gather_queries(chosen, min(c, n_queries), n_blocks)
    k, v = (F.pad(t, (0, 0, 0, -n_keys % c)).unflatten(2, (n_blocks, c)) for t in (k, v))
    rule = Rule(tiles, chosen < 0, mask, bias, n_keys - n_queries, c, scale, dropout)
    if plainly():
        return rule.attend(q, k, v)[0]
    return InParts.apply(rule, q, k, v, *(() if bias is None else bias.parameters()))


def _one_query(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, chosen: Tensor, c: int, scale: float,
    dropout: float,
) -> Tensor:  # fmt: skip
    """The same for the last token alone: its keys are read where they lie, where tiles would copy all keys into whole blocks."""
    batch, heads, n_keys = q.shape[0], q.shape[1], k.shape[2]
    j = chosen.clamp(min=0) * c + torch.arange(c, device=q.device)[:, None]  # (B, H, c, m)
    j = j.flatten(2)[:, :, None]
    n = j.shape[3]
    visible = (chosen >= 0).expand(-1, -1, c, -1).reshape(j.shape) & (j < n_keys)
    j = j.clamp(max=n_keys - 1)
    keys, values = (
        t.gather(2, j.view(batch, t.shape[1], heads // t.shape[1] * n, 1).expand(-1, -1, -1, t.shape[3])).view(
            batch, heads, n, t.shape[3]
        )
        for t in (k, v)
    )
    i = torch.full_like(j[..., :1], n_keys - 1)
    scores = _masked_scores(q * scale, keys, i, j, visible, mask, bias)
    return partial_softmax(scores, values, dropout)[0].to(v.dtype)


def _masked_scores(
    q: Tensor, k: Tensor, i: Tensor, j: Tensor, visible: Tensor, mask: Mask, bias: ScoreBias | None
) -> Tensor:
    """Products of queries at i (B, H, …, r, 1) and keys at j (B, H, …, 1, c), with the bias, -inf where one is not visible, is
    padding, or of another document; at least float32."""
    if mask.key_padding is not None:
        visible = visible & _at(mask.key_padding, j)
    if mask.documents is not None:
        visible = visible & (_at(mask.documents, i) == _at(mask.documents, j))
    scores = products(q, k)
    scores = scores.float() if scores.dtype.itemsize == 2 else scores
    if bias is not None:
        scores = scores + torch.stack([bias.block(i[:, h], j[:, h])[h] for h in range(q.shape[1])], 1)
    return scores.masked_fill(~visible, -torch.inf)


class Rule(NamedTuple):
    """What is done with q, and k and v in blocks; ``none`` (B, H, Tq, m) is True where no block is chosen."""

    tiles: Tiles
    none: Tensor
    mask: Mask
    bias: ScoreBias | None
    offset: int
    c: int
    scale: float
    dropout: float

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The output (B, H, Tq, Dv), and of each query the sum of exp(scores - top) and top (B, H, Tq, 1)."""
        whole: list[Tensor] = []
        for part in self.parts(q, k, v):
            rows = self.read(part, q, k, v)
            found = partial_softmax(self.scores(part, *rows[:2]), rows[2], self.dropout)
            whole = whole or [t.new_empty(*self.tiles.query.shape, t.shape[-1]) for t in found]
            for side, t in zip(whole, found, strict=True):
                side[:, :, part] = t
        outs, totals, tops = (side.flatten(2, 3) for side in whole)  # (B, H, n·r, ·)
        place, none = self.tiles.place, self.none[..., None]
        top = take(tops, place).masked_fill(none, torch.finfo(tops.dtype).min)
        # a difference of maxima, not of logarithms of sums, which large scores leave few digits
        highest = top.amax(-2)
        share = take(totals, place).masked_fill(none, 0.0) * (top - highest[..., None, :]).exp()
        total = share.sum(-2)
        share = share / total.masked_fill(total == 0, 1.0)[..., None, :]
        out = torch.zeros_like(highest)
        for a, at in zip(share.unbind(-2), place.unbind(-1), strict=True):
            out = out + a * take(outs, at)
        return out.to(v.dtype), total, highest

    def parts(self, *tensors: Tensor) -> list[slice]:
        """Tiles computed together: on a CPU as many as stay within `LARGEST_PART`."""
        n, r = self.tiles.query.shape[2:]
        if tensors[0].is_cuda or torch.compiler.is_compiling():
            return [slice(None)]
        rows, width = (
            self.tiles.query[:, :, 0].numel() // r * max(r, self.c),
            max(self.c, *(t.shape[-1] for t in tensors)),
        )
        step = max(LARGEST_PART // max(rows * width * max(tensors[0].itemsize, 4), 1), 1)
        return [slice(start, start + step) for start in range(0, n, step)]

    def read(self, part: slice, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        """Of tiles the queries (B, H, n, r, D), keys (B, H, n, c, D) and values."""
        query, block = self.tiles.query[:, :, part].clamp(min=0), self.tiles.block[:, :, part]
        return [take(q, query), take(k, block), take(v, block)]

    def scores(self, part: slice, q: Tensor, k: Tensor) -> Tensor:
        """(B, H, n, r, c) of queries and keys that were read, -inf where a query does not see; at least float32."""
        query, block = self.tiles.query[:, :, part], self.tiles.block[:, :, part]
        i = query[..., None] + self.offset  # (B, H, n, r, 1)
        j = (block[..., None] * self.c + torch.arange(self.c, device=q.device))[..., None, :]  # (B, H, n, 1, c)
        visible = (j <= i) & (query >= 0)[..., None]
        return _masked_scores(q * self.scale, k, i, j, visible, self.mask, self.bias)


class InParts(torch.autograd.Function):
    """`Rule.attend`; the gradient computes tiles again, from the output and two numbers a query."""

    @staticmethod
    def forward(ctx, rule: Rule, q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor) -> Tensor:
        kind = q.device.type
        ctx.rule, ctx.autocast = rule, (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        ctx.random = (torch.get_rng_state(), get_device_states(q)) if rule.dropout else None
        out, total, top = rule.attend(q, k, v)
        ctx.save_for_backward(q, k, v, out, total, top, *parameters)
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, total, top, *parameters = ctx.saved_tensors
        rule, tiles = ctx.rule, ctx.rule.tiles
        if torch.is_grad_enabled():
            return None, *recorded_gradients(lambda *t: InParts.again(ctx, *t), (q, k, v), gradient, parameters)
        # many tiles read one key: in half precision their sum would lose digits
        sums = [t.new_zeros(t.shape, dtype=wide(t.dtype)) for t in (q, k, v, *parameters)]  # contiguous
        learned = [(p, place) for p, place in zip(parameters, sums[3:], strict=True) if p.requires_grad]
        total = total.masked_fill(total == 0, 1.0)
        delta = (gradient.to(total.dtype) * out).sum(-1, keepdim=True)
        with InParts.drawing_again(ctx, q):
            for part in rule.parts(q, k, v):
                query, block = tiles.query[:, :, part].clamp(min=0), tiles.block[:, :, part]
                rows = [t.detach().requires_grad_() for t in rule.read(part, q, k, v)]
                with torch.enable_grad(), torch.autocast(*ctx.autocast):
                    weights = (rule.scores(part, *rows[:2]) - take(top, query)).exp() / take(total, query)
                    o = F.dropout(weights.to(v.dtype), rule.dropout) @ rows[2]
                above = take(gradient, query).to(o.dtype), -take(delta, query).expand_as(weights)
                found = torch.autograd.grad((o, weights), [*rows, *(p for p, _ in learned)], above)
                for place, index, g in zip(sums, (query, block, block), found, strict=False):
                    put(place, index, g)
                for (_, place), g in zip(learned, found[3:], strict=True):
                    place += g
        needed = ctx.needs_input_grad[1:]
        return None, *(
            s.to(t.dtype) if need else None for s, t, need in zip(sums, (q, k, v, *parameters), needed, strict=True)
        )

    @staticmethod
    def again(ctx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The output, as the forward pass made it."""
        with InParts.drawing_again(ctx, q), torch.autocast(*ctx.autocast):
            return ctx.rule.attend(q, k, v)[0]

    @staticmethod
    @contextmanager
    def drawing_again(ctx, q: Tensor) -> Iterator[None]:
        """With the random numbers of the forward pass."""
        with torch.random.fork_rng(sorted({q.get_device()} - {-1}), enabled=ctx.random is not None):
            if ctx.random:
                torch.set_rng_state(ctx.random[0])
                set_device_states(*ctx.random[1])
            yield


def partial_softmax(scores: Tensor, v: Tensor, dropout: float) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax over some of the keys, -inf where hidden, to be merged with others: its output (…, Dv), the sum (…, 1) of
    exp(scores - top), and top (…, 1), the largest score. A row that sees nothing gives an output and a sum of 0."""
    top = scores.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    e = (scores - top).exp()
    total = e.sum(-1, keepdim=True)
    one = total.masked_fill(total == 0, 1.0)
    auto = torch.is_autocast_enabled(v.device.type)
    if (torch.get_autocast_dtype(v.device.type) if auto else v.dtype) == torch.float16:
        # in this type a product with weights that are not divided yet overflows
        return F.dropout((e / one).to(v.dtype), dropout) @ v, total, top
    return (F.dropout(e.to(v.dtype), dropout) @ v) / one, total, top


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
    query = (blank - 1).scatter(-1, place, order // m)[..., :-1].unflatten(-1, (n, r))
    read = blank.scatter(-1, place, block)[..., :-1].unflatten(-1, (n, r))[..., 0]
    back = torch.empty_like(order).scatter(-1, order, place.masked_fill(~real, 0))
    return Tiles(read, query, back.view_as(chosen))


def take(t: Tensor, index: Tensor) -> Tensor:
    """Entries of t (B, G, n, *rest) along its third axis, by index (B, H, *S), head h from t's h // (H/G): (B, H, *S, *rest)."""
    return t.flatten(0, 2).index_select(0, _flat(t, index)).view(*index.shape, *t.shape[3:])


def put(total: Tensor, index: Tensor, t: Tensor) -> None:
    """Add to ``total``, in place, what `take` read by the index."""
    add_rows(total.flatten(0, 2), _flat(total, index), t.to(total.dtype).flatten(0, index.dim() - 1))


def _flat(t: Tensor, index: Tensor) -> Tensor:
    batch, heads, n = t.shape[:3]
    base = torch.arange(batch * heads, device=t.device).view(batch, heads) * n
    base = base.repeat_interleave(index.shape[1] // heads, 1)[..., None]
    return (index.flatten(2) + base).flatten()


def _at(values: Tensor, positions: Tensor) -> Tensor:
    """values (B or 1, T) read at positions (B, …); beside them whatever it holds."""
    flat = positions.flatten(1).clamp(0, values.shape[1] - 1)
    return values.expand(positions.shape[0], -1).gather(1, flat).view_as(positions)
