"""Attention over gathered key blocks: each block of c queries reads the key blocks it is told to, nothing n x n.

Time and memory are O(T · m · c) for m blocks a query block. Shapes: see `attnzoo.shapes`.
Source of the scheme: BigBird, arXiv:2007.14062, appendix D; Longformer, arXiv:2004.05150.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.contract import ScoreBias
from attnzoo.kernels import sdpa
from attnzoo.masks import Mask

Pattern = Callable[[Tensor, Tensor], Tensor | None]


def attend_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: ScoreBias | None,
    *,
    blocks: Tensor,
    block_size: int,
    pattern: Pattern,
    scale: float,
    dropout: float = 0.0,
    key_positions: Tensor | None = None,
) -> tuple[Tensor, str]:
    """Softmax attention in which query block n reads the key blocks ``blocks[n]``.

    Args:
        q, k, v: (B, H, Tq, D), (B, G, Tk, D), (B, G, Tk, Dv) with Tq ≤ Tk, the last query at the last key.
        blocks: (N, m) indices of key blocks, N = ceil(Tk / c); -1 reads nothing. Rows for blocks without a query are skipped.
        block_size: c.
        pattern: the backend's own visibility of positions (i, j), applied with the mask to every gathered pair.
        key_positions: (Tk,) position of each key in the sequence, ascending; 0 … Tk - 1 when None.

    Returns:
        (B, H, Tq, Dv) and the name of the kernel that ran.
    """
    batch, heads, n_queries, _ = q.shape
    n_keys, c = k.shape[2], block_size
    first = (n_keys - n_queries) // c  # first key block that holds a query
    lead = n_keys - n_queries - first * c
    blocks = blocks[first:]
    n_blocks, m = blocks.shape
    tail = (first + n_blocks) * c - n_keys

    positions = torch.arange(n_keys, device=q.device) if key_positions is None else key_positions
    positions = F.pad(positions, (0, tail), value=-1).view(-1, c)
    i = positions[first:, :, None].clone()
    i[0, :lead] = -1
    j = positions[blocks.clamp(min=0)].masked_fill((blocks < 0)[..., None], -1).view(n_blocks, 1, m * c)
    scores = _score_mask(i, j, mask, bias, pattern, q.dtype)  # (B or 1, N, H or 1, c, m·c)

    q_blocks = F.pad(q, (0, 0, lead, tail)).unflatten(2, (n_blocks, c))  # (B, H, N, c, D)
    k_blocks = _gather(F.pad(k, (0, 0, 0, tail)), blocks, c)  # (B, G, N, m·c, D)
    v_blocks = _gather(F.pad(v, (0, 0, 0, tail)), blocks, c)
    if scores.shape[0] == scores.shape[2] == 1:  # one mask for all: the batch becomes heads, and the mask broadcasts
        rows = [t.flatten(0, 1).transpose(0, 1) for t in (q_blocks, k_blocks, v_blocks)]  # (N, B·H, c, D)
        out, kernel = sdpa.call(*rows, scores[0], False, scale=scale, dropout=dropout)
        out = out.transpose(0, 1).unflatten(0, (batch, heads))
    else:
        rows = [t.transpose(1, 2).flatten(0, 1) for t in (q_blocks, k_blocks, v_blocks)]  # (B·N, H, c, D)
        masks = scores.expand(batch, *scores.shape[1:]).flatten(0, 1)
        out, kernel = sdpa.call(*rows, masks, False, scale=scale, dropout=dropout)
        out = out.unflatten(0, (batch, n_blocks)).transpose(1, 2)
    out = out.flatten(2, 3)[:, :, lead : lead + n_queries]
    return out, kernel.replace("sdpa/", "blocks/").removesuffix("+mask")


def _gather(t: Tensor, blocks: Tensor, c: int) -> Tensor:
    """(B, G, Tk, D) and block indices (N, m) -> (B, G, N, m·c, D)."""
    n, m = blocks.shape
    picked = t.unflatten(2, (-1, c)).index_select(2, blocks.clamp(min=0).flatten())
    return picked.unflatten(2, (n, m)).flatten(3, 4)


def _score_mask(
    i: Tensor, j: Tensor, mask: Mask, bias: ScoreBias | None, pattern: Pattern, dtype: torch.dtype
) -> Tensor:
    """Visibility of i (N, c, 1) by j (N, 1, m·c), (B or 1, N, H or 1, c, m·c): bool, or additive where there is a bias."""
    visible = mask.at(i, j) & (i >= 0) & (j >= 0)
    own = pattern(i, j)
    if own is not None:
        visible = visible & own
    if visible.dim() == 3:
        visible = visible[None]
    visible = visible[:, :, None]
    if bias is None:
        return visible
    return bias.block(i, j).to(dtype).transpose(0, 1)[None].masked_fill(~visible, float("-inf"))


def causal_block_count(n_tokens: int, block_size: int) -> int:
    """Number of blocks that hold n tokens."""
    return -(-n_tokens // block_size)
