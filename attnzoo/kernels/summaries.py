"""Past blocks of keys, seen through a summary of each: the summaries, who may see them, and the choice of blocks by them.

A block is past for a query when the query's own block lies behind it: nothing pooled is visible before it is finished.
Of a past block a query sees the keys that are real and of the document of the block's last token; as documents are
contiguous, that is the query's own document, or the block is hidden from it. Shapes: see `attnzoo.shapes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from attnzoo.cache import KVCache
from attnzoo.contract import Attention, Request, ScoreBias, masked_softmax
from attnzoo.kernels import sdpa
from attnzoo.kernels.blocks import LARGEST_PART
from attnzoo.kernels.derivatives import transformed
from attnzoo.masks import Mask

FIELDS = frozenset({"key_padding", "documents"})
"""The mask fields that leave a past block's summary the same for every query that sees it; a window or a prefix may cut
through a block, and without causality no block is past."""

ROWS = 1024
"""Queries whose mask over the summaries is made at once."""

Affinity = Callable[[Tensor, Tensor], Tensor]
"""Scores of queries with summaries (B, G, H/G, n, N) and who sees which, broadcastable to them -> (B, H or G, n, N)."""


@dataclass(frozen=True)
class Past:
    """The N finished blocks of c tokens among Tk keys, under a mask of the fields in `FIELDS`."""

    mask: Mask
    n_keys: int
    c: int

    @property
    def n_blocks(self) -> int:
        return self.n_keys // self.c

    def members(self) -> Tensor | None:
        """(B or 1, N, c): the keys of each block that later queries may see; None for all of them."""
        if self.mask.static:
            return None
        shape, member = (self.n_blocks, self.c), None
        if self.mask.key_padding is not None:
            member = self.mask.key_padding[:, : self.n_blocks * self.c].unflatten(1, shape)
        if self.mask.documents is not None:
            ids = self.mask.documents[:, : self.n_blocks * self.c].unflatten(1, shape)
            same = ids == ids[..., -1:]
            member = same if member is None else member & same
        return member

    def seen_from(self, i: Tensor) -> Tensor:
        """Which blocks the queries at positions i (n,) see: bool (B or 1, n, N)."""
        seen = (torch.arange(self.n_blocks, device=i.device) < (i // self.c)[:, None])[None]
        member = self.members()
        if member is not None:
            seen = seen & member.any(-1)[:, None]
        if self.mask.documents is not None:
            last = self.mask.documents[:, self.c - 1 :: self.c]
            seen = seen & (self.mask.documents[:, i, None] == last[:, None])
        return seen


def pool(t: Tensor, c: int, members: Tensor | None, logits: Tensor | None = None) -> Tensor:
    """(B, G, N·c, D) -> (B, G, N, D) float64: the mean over each block's members, or weighted by softmax(logits (G, c))."""
    blocks = t.unflatten(2, (-1, c)).double()
    logits = blocks.new_zeros(1, c) if logits is None else logits.double()
    everyone = torch.ones(1, 1, 1, dtype=torch.bool, device=t.device)
    share = masked_softmax(logits[:, None], everyone if members is None else members[:, None])  # (B or 1, G or 1, N, c)
    return (share[..., None, :] @ blocks).squeeze(-2)


@torch.no_grad()
def choose(q: Tensor, summaries: Tensor, past: Past, n: int, *, scale: float, affinity: Affinity) -> Tensor:
    """For each query its own block and the n past ones of largest affinity: (B, H or G, Tq, n + 1) block numbers, -1 where
    fewer are past.

    Affinities are computed in float64 and compared in float32, the earlier block first among equals. So a parallel pass, a
    decoded token and the definition choose alike, whatever the precision and the shape of the products of each: float64's
    own rounding, 10^-16 or so, moves one affinity in some 10^8 across a step of float32.

    Args:
        q: (B, H, Tq, D), the last at the last key.
        summaries: (B, G, N, D) float64.
    """
    batch, heads, n_queries, _ = q.shape
    offset, n = past.n_keys - n_queries, min(n, past.n_blocks)
    parts, step = 1, n_queries
    if not torch.compiler.is_compiling():  # in parts, the memory is that of the choice and not Tq x N
        step = max(LARGEST_PART // (8 * max(batch, 1) * heads * max(past.n_blocks, 1)), 1)
        parts = -(-n_queries // step)
    chosen = []
    for start in (part * step for part in range(parts)):
        rows = q[:, :, start : start + step].double().unflatten(1, (summaries.shape[1], -1))
        i = torch.arange(offset + start, offset + start + rows.shape[3], device=q.device)
        reach = max((offset + start + rows.shape[3]) // past.c, n)  # no query of the part sees a block beyond
        seen = past.seen_from(i)[:, None, :, :reach]
        found = affinity(rows * scale @ summaries[:, :, None, :reach].mT, seen[:, None])
        best = largest(found.float().masked_fill(~seen, -torch.inf), n)
        chosen.append(torch.cat([(i // past.c)[:, None].expand(*best.shape[:2], -1, -1), best], -1))
    return torch.cat(chosen, 2)


def attend_summaries(q: Tensor, k: Tensor, v: Tensor, past: Past, *, scale: float, dropout: float = 0.0) -> Tensor:
    """Softmax of each query over the summaries k (B, G, N, D) and v (B, G, N, Dv) of its past blocks: (B, H, Tq, Dv).

    Time O(Tq·N), memory O(Tq): the masks of parts of the queries are made again in the backward pass.
    """
    n_queries, offset = q.shape[2], past.n_keys - q.shape[2]

    def rows(start: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i = torch.arange(offset + start, offset + start + q.shape[2], device=q.device)
        return sdpa.call(
            q, k, v, past.seen_from(i)[:, None, :, : k.shape[2]], False, scale=scale, dropout=dropout
        )[0]  # fmt: skip

    if not past.n_blocks:  # a sum over nothing, so that what the summaries were made with still gets its gradient of 0
        return (q.unflatten(1, (k.shape[1], -1)) @ k.mT[:, :, None] @ v[:, :, None]).flatten(1, 2)
    parts, step = (1, n_queries) if torch.compiler.is_compiling() else (-(-n_queries // ROWS), ROWS)
    outs = []
    for start in (part * step for part in range(parts)):
        reach = max(min(offset + start + step, past.n_keys) // past.c, 1)
        arguments = (start, q[:, :, start : start + step], k[:, :, :reach], v[:, :, :reach])
        if torch.is_grad_enabled() and parts > 1 and not transformed():
            outs.append(checkpoint(rows, *arguments, use_reentrant=False, preserve_rng_state=dropout > 0))
        else:
            outs.append(rows(*arguments))
    return torch.cat(outs, 2)


def largest(scores: Tensor, n: int) -> Tensor:
    """Places of the n largest along the last axis, the first among equals; -1 for those that are -inf. topk breaks ties as
    it likes."""
    found = scores.new_full((*scores.shape[:-1], n), -1, dtype=torch.long)
    for rank in range(n):
        best, at = scores.max(-1, keepdim=True)
        found[..., rank : rank + 1] = at.masked_fill(best == -torch.inf, -1)
        scores = scores.scatter(-1, at, -torch.inf)
    return found


def dense_blocks(scores: Tensor, c: int) -> tuple[Tensor, Tensor, Tensor]:
    """For definitions with scores (…, Tq, Tk): each query's own block (Tq, 1), each key's (Tk,), the blocks' numbers (N,)."""
    n_queries, n_keys = scores.shape[-2:]
    i = torch.arange(n_keys - n_queries, n_keys, device=scores.device)[:, None]
    block = torch.arange(n_keys, device=scores.device) // c
    return i.div(c, rounding_mode="floor"), block, torch.arange(-(-n_keys // c), device=scores.device)


def among_largest(affinity: Tensor, past: Tensor, n: int) -> Tensor:
    """The definition of the choice, by counting: bool like ``affinity`` (…, N), true where fewer than n past blocks have a
    larger affinity, or an equal one and come earlier."""
    compared = affinity.float().masked_fill(~past, -torch.inf)
    number = torch.arange(affinity.shape[-1], device=affinity.device)
    one, other = compared[..., None], compared[..., None, :]
    before = (other > one) | ((other == one) & (number < number[:, None]))
    return past & (before.sum(-1) < n)


class SummaryCache(KVCache):
    """Keys and values of every token, and summaries (B, G, N, ·) of the finished blocks in float64."""

    def __init__(self, keys: Tensor, values: Tensor, summaries: tuple[Tensor, ...]) -> None:
        super().__init__(keys, values)
        self.summaries = summaries

    @property
    def nbytes(self) -> int:
        return super().nbytes + sum(t.nbytes for t in self.summaries)


class PastBlocksAttention(Attention):
    """What rules that see past blocks through summaries share: the summaries, in training and in a cache, and refusals.

    A subclass has an option ``block`` (c) and gives `attend_past`, and `summarise` where its summary is not the mean key.
    """

    @property
    def block(self) -> int:
        return self.options.block  # type: ignore[attr-defined]

    @property
    def pooled(self) -> int:
        """What is summarised: 1 is the keys, 2 keys and values."""
        return 1

    @property
    def summary_heads(self) -> int:
        """How many summaries there are of a block."""
        return self.n_kv_heads

    def summarise(self, k: Tensor, v: Tensor, members: Tensor | None) -> tuple[Tensor, ...]:
        """Keys (B, G, N·c, D) and values of whole blocks -> ``pooled`` summaries (B, G, N, ·) in float64."""
        return (pool(k.detach(), self.block, members),)

    def attend_past(
        self, q: Tensor, k: Tensor, v: Tensor, summaries: tuple[Tensor, ...], past: Past, bias: ScoreBias | None, x: Tensor | None
    ) -> Tensor:  # fmt: skip
        """The rule, with Tq ≤ Tk: (B, H, Tq, Dv)."""
        raise NotImplementedError

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        if not request.contiguous_documents:
            yield f"{cls.name} pools blocks of neighbouring tokens: documents must be contiguous runs of one id"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        extra = q.shape[2] - k.shape[2]
        if extra > 0:  # queries before the first key see nothing
            out = self.attend(q[:, :, extra:], k, v, mask, bias, None if x is None else x[:, extra:])
            return F.pad(out, (0, 0, extra, 0))
        past = Past(mask, k.shape[2], self.block)
        whole = slice(past.n_blocks * self.block)
        summaries = self.summarise(k[:, :, whole], v[:, :, whole], past.members())
        return self.attend_past(q, k, v, summaries, past, bias, x)

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None) -> SummaryCache:
        plain = super().new_cache(batch_size, max_tokens, device, dtype, value_dim)
        shape = (batch_size, self.summary_heads, max_tokens // self.block)
        held = (plain.keys, plain.values)[: self.pooled]
        summaries = (torch.zeros(*shape, t.shape[3], device=device, dtype=torch.float64) for t in held)
        return SummaryCache(plain.keys, plain.values, tuple(summaries))

    def cache_bytes(self, batch_size, max_tokens, dtype, value_dim=None) -> int:
        channels = sum((self.head_dim, value_dim or self.head_dim)[: self.pooled])
        summaries = 8 * batch_size * self.summary_heads * (max_tokens // self.block) * channels
        return super().cache_bytes(batch_size, max_tokens, dtype, value_dim) + summaries

    def attend_cached(self, q, k, v, cache: SummaryCache, mask: Mask, bias, x) -> Tensor:
        done = cache.length // self.block
        keys, values = cache.append(k, v)
        past = Past(mask, cache.length, self.block)
        if past.n_blocks > done:
            fresh, members = slice(done * self.block, past.n_blocks * self.block), past.members()
            members = None if members is None else members[:, done:]
            new = self.summarise(keys[:, :, fresh], values[:, :, fresh], members)
            for held, finished in zip(cache.summaries, new, strict=True):
                held[:, :, done : past.n_blocks] = finished
        summaries = tuple(t[:, :, : past.n_blocks] for t in cache.summaries)
        return self.attend_past(q, keys, values, summaries, past, bias, x)
