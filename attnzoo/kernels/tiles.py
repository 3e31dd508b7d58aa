"""Attention written out in tiles of query rows, for rules that no fused kernel computes. Shapes: see `attnzoo.shapes`.

Time O(Tq·Tk), with the keys past a tile's last query left out; memory O(T·c) for tiles of c rows: what lies between
scores and output is computed again in the backward pass (activation checkpointing, arXiv:1604.06174).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from attnzoo.contract import Options, ScoreBias, masked_softmax
from attnzoo.errors import RequestError
from attnzoo.kernels.derivatives import transformed
from attnzoo.masks import Mask
from attnzoo.softmax import products


@dataclass(frozen=True)
class TileOptions(Options):
    """tile: query rows computed together; changes speed and memory, not the result beyond rounding."""

    tile: int = 128

    def __post_init__(self) -> None:
        if self.tile < 1:
            raise RequestError(f"tile={self.tile}: a tile has at least 1 row")


Change = Callable[[Tensor, int], Tensor]
"""Scores (B, H, c, n) of the query rows from the given one on and the first n keys -> scores, before the bias is added."""
Normalise = Callable[[Tensor, Tensor], Tensor]
"""Scores (B, H, c, n) and visibility, broadcastable to it -> weights, exactly 0 where nothing is visible."""


def attend_tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: ScoreBias | None,
    *,
    scale: float,
    tile: int,
    dropout: float = 0.0,
    change: Change | None = None,
    normalise: Normalise = masked_softmax,
    positions: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """normalise(change(q kᵀ · scale) + bias) v, a tile of query rows at a time: (B, H, Tq, Dv).

    Scores of half-precision inputs are changed and normalised in float32.

    Args:
        positions: those of the queries (Tq,) and keys (Tk,), in any order; None is the last query at the last key.
    """
    n_queries, n_keys = q.shape[2], k.shape[2]
    offset = n_keys - n_queries
    if positions is None:
        at, of_keys = torch.arange(offset, n_keys, device=q.device), torch.arange(n_keys, device=q.device)
    else:
        at, of_keys = positions
    half = v.dtype if v.dtype.itemsize == 2 and n_queries > tile else None
    if half:  # raised before the tiles part, lowered in each: the gradients of those that read a key add up in float32
        k, v = k.float(), v.float()

    def rows(start: int, end: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # query heads that read one key/value head lie below one another, so that K and V are never repeated
        if half:
            k, v = k.to(half), v.to(half)
        grouped = (q * scale).unflatten(1, (k.shape[1], -1)).flatten(2, 3)  # (B, G, H/G·c, D)
        scores = products(grouped, k).unflatten(2, (-1, end - start)).flatten(1, 2)
        scores = scores.float() if scores.dtype.itemsize == 2 else scores
        if change is not None:
            scores = change(scores, start)
        i, j = at[start:end, None], of_keys[None, : k.shape[2]]
        if bias is not None:
            scores = scores + bias.block(i, j)
        visible = mask.at(i, j)
        weights = normalise(scores, visible if visible.dim() == 2 else visible[:, None])
        weights = F.dropout(weights.to(v.dtype), dropout)
        return (weights.unflatten(1, (k.shape[1], -1)).flatten(2, 3) @ v).unflatten(2, (-1, end - start)).flatten(1, 2)

    outs = []
    # a single tile is within the memory of one anyway; torch.func knows no checkpoints
    save = torch.is_grad_enabled() and n_queries > tile and not transformed()
    for number in range(-(-n_queries // tile)):  # compiled, the number of tiles is fixed and not the length
        start, end = number * tile, min(number * tile + tile, n_queries)
        # no query of the tile sees past its last one, but for a prefix
        seen = min(max(offset + end, mask.prefix, 1), n_keys) if mask.causal and positions is None else n_keys
        arguments = (start, end, q[:, :, start:end], k[:, :, :seen], v[:, :, :seen])
        if save:
            outs.append(checkpoint(rows, *arguments, use_reentrant=False, preserve_rng_state=dropout > 0))
        else:
            outs.append(rows(*arguments))
    return torch.cat(outs, 2)
