"""A ring of the last W keys and values, and one-token attention over it. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnzoo.contract import ScoreBias
from attnzoo.kernels import sdpa
from attnzoo.masks import Mask


class RingCache:
    """The last W tokens' keys (B, G, W, D) and values; position p lives in slot p mod W.

    ``length`` counts all tokens seen, ``max_tokens`` bounds it; unused slots are never read.
    """

    def __init__(self, keys: Tensor, values: Tensor, max_tokens: int) -> None:
        self.keys, self.values, self.max_tokens, self.length = keys, values, max_tokens, 0

    @property
    def slots(self) -> int:
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def store(self, k: Tensor, v: Tensor) -> None:
        """Remember n new tokens; of more than W only the last W."""
        new = k.shape[2]
        kept = min(new, self.slots)
        where = torch.arange(self.length + new - kept, self.length + new, device=k.device) % self.slots
        self.keys[:, :, where] = k[:, :, new - kept :]
        self.values[:, :, where] = v[:, :, new - kept :]
        self.length += new

    def positions(self) -> Tensor:
        """(used slots,) position of the token in each slot that holds one, in slot order."""
        slot = torch.arange(min(self.length, self.slots), device=self.keys.device)
        last = self.length - 1
        return last - (last - slot) % self.slots

    def ordered(self) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and positions of what is held, oldest first."""
        held = min(self.length, self.slots)
        positions = torch.arange(self.length - held, self.length, device=self.keys.device)
        where = positions % self.slots
        return self.keys[:, :, where], self.values[:, :, where], positions


def attend_ring(
    q: Tensor,
    cache: RingCache,
    mask: Mask,
    bias: ScoreBias | None,
    pattern: Callable[[Tensor, Tensor], Tensor | None],
    *,
    scale: float,
    dropout: float = 0.0,
) -> tuple[Tensor, str]:
    """The newest token's query (B, H, 1, D) over the ring as it lies: (B, H, 1, Dv) and the kernel that ran."""
    used = min(cache.length, cache.slots)
    keys, values = cache.keys[:, :, :used], cache.values[:, :, :used]
    scores = None
    if mask.fields or bias is not None:
        i = torch.full((1, 1), cache.length - 1, device=q.device)
        j = cache.positions()[None, :]
        visible = mask.at(i, j)
        own = pattern(i, j)
        visible = visible if own is None else visible & own
        scores = visible[None, None] if visible.dim() == 2 else visible[:, None]
        if bias is not None:
            scores = bias.block(i, j).to(q.dtype)[None].masked_fill(~scores, float("-inf"))
    out, kernel = sdpa.call(q, keys, values, scores, False, scale=scale, dropout=dropout)
    return out, kernel.replace("sdpa/", "ring/").removesuffix("+mask")
