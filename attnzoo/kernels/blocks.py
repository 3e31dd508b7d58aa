"""Attention over blocks of keys: each block of c queries reads the key blocks it is told to, nothing n x n.

Time and memory are O(T · m · c) for m blocks a query block. Shapes: see `attnzoo.shapes`.
Source of the scheme: BigBird, arXiv:2007.14062, appendix D; Longformer, arXiv:2004.05150.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.contract import ScoreBias
from attnzoo.kernels import sdpa
from attnzoo.kernels.derivatives import plainly
from attnzoo.kernels.gates import wide
from attnzoo.kernels.pad import pad_tokens
from attnzoo.kernels.sums import add_blocks
from attnzoo.masks import Mask

LARGEST_PART = 2**23
"""Bytes. On a CPU copies are kept below this: the C library returns larger ones to the system at once, and taking them
anew, page by page, cost 40 % of the time at 8192 tokens."""


class Cut(NamedTuple):
    """How Tq queries and Tk keys, the last of each aligned, are cut into blocks of c tokens from the first key on."""

    n_queries: int
    n_keys: int
    c: int

    @property
    def first(self) -> int:
        """The first block that holds a query."""
        return (self.n_keys - self.n_queries) // self.c

    @property
    def n_blocks(self) -> int:
        """N, blocks that hold a query."""
        return -(-self.n_keys // self.c) - self.first

    @property
    def lead(self) -> int:
        """Places before the first query in its block."""
        return (self.n_keys - self.n_queries) % self.c

    @property
    def tail(self) -> int:
        """Places after the last token in its block."""
        return -self.n_keys % self.c


def attend_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: ScoreBias | None,
    *,
    blocks: Tensor | int,
    block_size: int,
    scale: float,
    window: int | None = None,
    sinks: int = 0,
    dropout: float = 0.0,
    key_positions: Tensor | None = None,
    everyones: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, str]:
    """Softmax attention in which query block n reads the key blocks ``blocks[n]``.

    Args:
        q, k, v: (B, H, Tq, D), (B, G, Tk, D), (B, G, Tk, Dv) with Tq ≤ Tk, the last query at the last key.
        blocks: (ceil(Tk / c), m) indices of key blocks, -1 for none; or m, for the query's own block and the m - 1
            before it, which are then read where they lie.
        block_size: c.
        window: of the keys read, only the last W up to the query's own are seen,
        sinks: and those of the first tokens.
        key_positions: (Tk,) position of each key in the sequence, ascending; 0 … Tk - 1 when None.
        everyones: one more key (D,) and value (Dv,) that every query sees, whatever the mask; with a window.

    Returns:
        (B, H, Tq, Dv) and the name of the kernel that ran.
    """
    cut = Cut(q.shape[2], k.shape[2], block_size)
    scores = None
    if isinstance(blocks, int) and blocks == 1 and window is None and not mask.fields and bias is None:
        pass  # each block is a causal sequence of its own
    elif mask.static and bias is None and key_positions is None and not torch.compiler.is_compiling():
        fields = (mask.causal, mask.window, mask.sinks, mask.prefix)
        scores = static_scores(fields, window, sinks, blocks, cut, q.device, q.dtype)
    else:
        i, j = _positions(blocks, cut, key_positions, q.device)
        scores = _score_mask(i, j, mask, window, sinks, bias, q.dtype)

    return attend_read(q, k, v, scores, blocks=blocks, cut=cut, scale=scale, dropout=dropout, everyones=everyones)


def attend_read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scores: Tensor | None,
    *,
    blocks: Tensor | int,
    cut: Cut,
    scale: float,
    dropout: float = 0.0,
    everyones: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, str]:
    """`attend_blocks` with the mask already made: ``scores`` (B or 1, N, H or 1, c, m·c), bool or additive.

    The keys may be more than ``cut`` counts, where blocks beyond those of the tokens are named as well.
    """
    q_blocks = pad_tokens(q, cut.lead, cut.tail).unflatten(2, (cut.n_blocks, cut.c))  # (B, H, N, c, D)
    n = _part_size(k, v, blocks, cut)
    k_parts, v_parts = _read(k, blocks, cut, n), _read(v, blocks, cut, n)  # (B, G, n, m·c, D) each, N blocks in all
    masks = repeat(None) if scores is None else scores.split(n, 1)
    outs, kernel = [], ""
    for q_part, k_part, v_part, part in zip(q_blocks.split(n, 2), k_parts, v_parts, masks, strict=False):
        if everyones is not None:
            assert part is not None, "without a mask the last key would be seen by the last query alone"
            k_part, v_part = (_with_one_more(t, one) for t, one in zip((k_part, v_part), everyones, strict=True))
            part = F.pad(part, (0, 1), value=part.dtype == torch.bool)
        out, kernel = _attend_rows(q_part, k_part, v_part, part, scale=scale, dropout=dropout)
        outs.append(out)
    out = outs[0] if len(outs) == 1 else torch.cat(outs, 2)
    out = out.flatten(2, 3)[:, :, cut.lead : cut.lead + cut.n_queries]
    return out, kernel.replace("sdpa/", "blocks/").removesuffix("+mask")


def _with_one_more(t: Tensor, one: Tensor) -> Tensor:
    """(B, G, n, m·c, D) with (D,) behind each block's own."""
    return torch.cat([t, one.expand(*t.shape[:3], 1, -1)], 3)


def _attend_rows(
    q: Tensor, k: Tensor, v: Tensor, scores: Tensor | None, *, scale: float, dropout: float
) -> tuple[Tensor, str]:
    """Each block over the keys it has read: (B, H, N, c, D), (B, G, N, m·c, D), masks (B or 1, N, H or 1, c, m·c)."""
    batch, heads, n_blocks = q.shape[:3]
    if scores is None or scores.shape[0] == scores.shape[2] == 1:  # one mask for all: the batch becomes heads
        q, k, v = (t.flatten(0, 1).transpose(0, 1) for t in (q, k, v))  # (N, B·H, c, D)
        one = None if scores is None else scores[0]
        out, kernel = sdpa.call(q, k, v, one, scores is None, scale=scale, dropout=dropout)
        return out.transpose(0, 1).unflatten(0, (batch, heads)), kernel
    q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (q, k, v))  # (B·N, H, c, D)
    masks = scores.expand(batch, *scores.shape[1:]).flatten(0, 1)
    out, kernel = sdpa.call(q, k, v, masks, False, scale=scale, dropout=dropout)
    return out.unflatten(0, (batch, n_blocks)).transpose(1, 2), kernel


@lru_cache(maxsize=8)
def static_scores(
    fields: tuple,
    window: int | None,
    sinks: int,
    blocks: Tensor | int,
    cut: Cut,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """The additive mask (1, N, 1, c, m·c) of a mask that depends on positions alone, built once for all layers and
    steps.

    ``blocks`` counts by identity where it is a tensor. Measuring memory clears this, so that it is counted.
    """
    with torch.inference_mode(False):  # made during an evaluation, it must still serve training
        i, j = _positions(blocks, cut, None, device)
        visible = _score_mask(i, j, Mask(*fields), window, sinks, None, dtype)
        return torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill_(~visible, float("-inf"))


class Overlapping(torch.autograd.Function):
    """(B, G, (N + m - 1)·c, D) -> (B, G, N, m·c, D): m blocks in a row from each block on, as a view."""

    @staticmethod
    def forward(ctx, t: Tensor, m: int, c: int) -> Tensor:
        ctx.m, ctx.c = m, c
        return _overlapping(t, m, c)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        by_place = gradient.unflatten(3, (ctx.m, ctx.c))  # (B, G, N, m, c, D)
        n = by_place.shape[2]
        total = F.pad(by_place[:, :, :, 0].to(wide(gradient.dtype)), (0, 0, 0, 0, 0, ctx.m - 1))
        for place in range(1, ctx.m):
            total[:, :, place : place + n] += by_place[:, :, :, place]
        return total.flatten(2, 3).to(gradient.dtype), None, None


def _overlapping(t: Tensor, m: int, c: int) -> Tensor:
    return t.unfold(2, m * c, c).mT


class Gathered(torch.autograd.Function):
    """(B, G, Nk, c, D) and block numbers, parts of (N, m) -> copies (B, G, n, m·c, D), one a part."""

    @staticmethod
    def forward(ctx, t: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.shape, ctx.parts = t.shape, parts
        return tuple(_gather(t, wanted) for wanted in parts)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        kind = gradients[0].dtype
        total = gradients[0].new_zeros(ctx.shape, dtype=wide(kind))
        for wanted, gradient in zip(ctx.parts, gradients, strict=True):
            by_block = gradient.unflatten(3, (wanted.shape[1], -1)).flatten(2, 3)
            add_blocks(total, wanted.flatten(), by_block.to(total.dtype))
        return total.to(kind), *(None for _ in ctx.parts)


def _gather(t: Tensor, wanted: Tensor) -> Tensor:
    """(B, G, Nk, c, D) and block numbers (n, m) -> (B, G, n, m·c, D)."""
    return t.index_select(2, wanted.flatten()).unflatten(2, wanted.shape).flatten(3, 4)


def _read(t: Tensor, blocks: Tensor | int, cut: Cut, n: int) -> Iterable[Tensor]:
    """(B, G, Tk, D) -> (B, G, n, m·c, D), n blocks at a time: the keys each query block reads, zeros outside."""
    if isinstance(blocks, int):  # a negative pad drops the keys before the first block that is read
        padded = pad_tokens(t, (blocks - 1 - cut.first) * cut.c, cut.tail)
        if blocks == 1:  # compiled, a stride must be a constant, a shape need not
            return [padded.unflatten(2, (-1, cut.c))]
        return [_overlapping(padded, blocks, cut.c) if plainly() else Overlapping.apply(padded, blocks, cut.c)]
    parts = blocks[cut.first :].clamp(min=0).split(n)
    by_block = pad_tokens(t, 0, -t.shape[2] % cut.c).unflatten(2, (-1, cut.c))
    if t.requires_grad and torch.is_grad_enabled() and not plainly():
        # all parts at once: their gradients are summed in one place
        return Gathered.apply(by_block, *parts)
    return (_gather(by_block, wanted) for wanted in parts)


def _part_size(k: Tensor, v: Tensor, blocks: Tensor | int, cut: Cut) -> int:
    """Query blocks whose keys are copied together."""
    if isinstance(blocks, int) or k.is_cuda or torch.compiler.is_compiling():
        return cut.n_blocks
    each = max(t[:, :, :1].nbytes for t in (k, v)) * blocks.shape[1] * cut.c
    return max(LARGEST_PART // max(each, 1), 1)  # a batch of none takes no bytes


def _positions(
    blocks: Tensor | int, cut: Cut, key_positions: Tensor | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Positions of the queries (N, c, 1) and of the keys they read (N, 1, m·c); -1 where there is none."""
    positions = torch.arange(cut.n_keys, device=device) if key_positions is None else key_positions
    shifted = (positions + 1).view(1, 1, -1, 1)  # what is padded with 0 then has position -1
    i = pad_tokens(shifted[:, :, cut.n_keys - cut.n_queries :], cut.lead, cut.tail).view(cut.n_blocks, cut.c, 1) - 1
    (read,) = _read(shifted, blocks, cut, cut.n_blocks)
    j = read.view(cut.n_blocks, 1, -1) - 1
    if isinstance(blocks, Tensor):
        unread = (blocks[cut.first :] < 0).repeat_interleave(cut.c, 1)
        j = j.masked_fill(unread[:, None], -1)
    return i, j


def _score_mask(
    i: Tensor, j: Tensor, mask: Mask, window: int | None, sinks: int, bias: ScoreBias | None, dtype: torch.dtype
) -> Tensor:
    """Who sees whom of i (N, c, 1) and j (N, 1, m·c): (B or 1, N, H or 1, c, m·c), bool, or additive with a bias."""
    visible = mask.at(i, j) & (i >= 0) & (j >= 0)
    if window is not None:
        visible = visible & ((i - window < j) | (j < sinks)) & (j <= i)
    if visible.dim() == 3:
        visible = visible[None]
    visible = visible[:, :, None]
    if bias is None:
        return visible
    return bias.block(i, j).to(dtype).transpose(0, 1)[None].masked_fill(~visible, float("-inf"))
