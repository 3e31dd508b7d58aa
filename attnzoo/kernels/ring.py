"""A ring of the last W keys and values, with sinks that stay, and one-token attention over it.

Shapes: see `attnzoo.shapes`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnzoo.cache import held_bytes
from attnzoo.contract import ScoreBias
from attnzoo.kernels import sdpa
from attnzoo.masks import Mask


class RingCache:
    """The first ``sinks`` tokens' keys (B, G, sinks + W, D) and values, and those of the last W after them.

    A sink at position p lives in slot p, a later token in slot sinks + (p - sinks) mod W.
    ``length`` counts all tokens seen, ``max_tokens`` bounds it; unused slots are never read.
    """

    def __init__(self, keys: Tensor, values: Tensor, max_tokens: int, sinks: int = 0) -> None:
        self.keys, self.values, self.max_tokens, self.length = keys, values, max_tokens, 0
        self.sinks = min(sinks, keys.shape[2])

    @property
    def slots(self) -> int:
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        return held_bytes(self.keys, self.values)

    def store(self, k: Tensor, v: Tensor) -> None:
        """Remember n new tokens; of those that are no sinks, at most the last W."""
        kept = self._kept(self.length, self.length + k.shape[2])
        where, taken = self._slot(kept), kept - self.length
        self.keys[:, :, where] = k[:, :, taken]
        self.values[:, :, where] = v[:, :, taken]
        self.length += k.shape[2]

    def positions(self) -> Tensor:
        """(used slots,) position of the token in each slot that holds one, in slot order."""
        slot = torch.arange(min(self.length, self.slots), device=self.keys.device)
        last = self.length - 1
        return torch.where(slot < self.sinks, slot, last - (last - slot) % self._width)

    def ordered(self) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and positions of what is held, oldest first."""
        positions = self._kept(0, self.length)
        where = self._slot(positions)
        return self.keys[:, :, where], self.values[:, :, where], positions

    @property
    def _width(self) -> int:
        return max(self.slots - self.sinks, 1)

    def _kept(self, start: int, end: int) -> Tensor:
        """Which of the positions from start to end - 1 are held once end tokens have been seen, ascending."""
        first = max(start, self.sinks, end - (self.slots - self.sinks))
        sinks = torch.arange(start, max(min(self.sinks, end), start), device=self.keys.device)
        return torch.cat([sinks, torch.arange(first, max(end, first), device=self.keys.device)])

    def _slot(self, positions: Tensor) -> Tensor:
        return torch.where(positions < self.sinks, positions, self.sinks + (positions - self.sinks) % self._width)


def attend_ring(
    q: Tensor,
    cache: RingCache,
    mask: Mask,
    bias: ScoreBias | None,
    pattern: Callable[[Tensor, Tensor], Tensor | None],
    *,
    scale: float,
    dropout: float = 0.0,
    read: slice = slice(None),
) -> tuple[Tensor, str]:
    """The newest token's query (B, H, 1, D) over the used slots as they lie: (B, H, 1, Dv) and the kernel that ran.

    ``read`` names the slots that the query's pattern reaches; all by default.
    """
    used = min(cache.length, cache.slots)
    keys, values = cache.keys[:, :, :used][:, :, read], cache.values[:, :, :used][:, :, read]
    scores = None
    if mask.fields or bias is not None:
        i = torch.full((1, 1), cache.length - 1, device=q.device)
        j = cache.positions()[None, read]
        visible = mask.at(i, j)
        own = pattern(i, j)
        visible = visible if own is None else visible & own
        scores = visible[None, None] if visible.dim() == 2 else visible[:, None]
        if bias is not None:
            scores = bias.block(i, j).to(q.dtype)[None].masked_fill(~scores, float("-inf"))
    out, kernel = sdpa.call(q, keys, values, scores, False, scale=scale, dropout=dropout)
    return out, kernel.replace("sdpa/", "ring/").removesuffix("+mask")
