"""Softmax attention over the last W keys and the first few: what every window shares. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.contract import Capabilities, ScoreBias, softmax_flops
from attnzoo.kernels.blocks import attend_blocks
from attnzoo.kernels.compiling import constant_result
from attnzoo.kernels.library import WithLibraries
from attnzoo.kernels.ring import RingCache, attend_ring
from attnzoo.masks import Mask


class WindowAttention(WithLibraries):
    """What the windows share: blocks of queries in training, a ring of keys in decoding.

    A subclass gives ``window`` and, if some first tokens stay visible for good, ``sinks``. One whose window may be None has
    then no pattern and a plain cache, and gives `attend` for it. ``kernel`` is auto, blocks (which auto is) or flex.
    """

    kernels: ClassVar[tuple[str, ...]] = ("auto", "blocks", "flex")
    capabilities = Capabilities(time=1.0, memory=1.0, state=0.0, products=True)

    @property
    def window(self) -> int | None:
        raise NotImplementedError

    @property
    def sinks(self) -> int:
        return 0

    def pattern(self, i: Tensor, j: Tensor) -> Tensor | None:
        if self.window is None:
            return None
        return ((i - self.window < j) | (j < self.sinks)) & (j <= i)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        return self._attend_at(q, k, v, mask, bias, None)

    def _attend_at(self, q, k, v, mask: Mask, bias: ScoreBias | None, key_positions: Tensor | None) -> Tensor:
        assert self.window is not None
        if self.options.kernel == "flex":
            return self.by_flex(q, k, v, mask, bias, key_positions=key_positions)[0]
        out, kernel = attend_window(
            q, k, v, mask, bias, window=self.window, sinks=self.sinks, scale=self.scale, dropout=self.dropout_now,
            key_positions=key_positions,
        )  # fmt: skip
        self.ran(kernel)
        return out

    def _attend_newest(self, q: Tensor, cache: RingCache, mask: Mask, bias: ScoreBias | None) -> Tensor:
        """One token's query over the ring as it lies: softmax does not mind the order of the keys."""
        out, kernel = attend_ring(q, cache, mask, bias, self.pattern, scale=self.scale, dropout=self.dropout_now)
        self.ran(kernel)
        return out

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None):
        slots = super().new_cache(batch_size, self._slots(max_tokens), device, dtype, value_dim)
        if self.window is None:
            return slots
        return RingCache(slots.keys, slots.values, max_tokens, self.sinks)

    def cache_bytes(self, batch_size, max_tokens, dtype, value_dim=None) -> int:
        return super().cache_bytes(batch_size, self._slots(max_tokens), dtype, value_dim)

    def _slots(self, max_tokens: int) -> int:
        return max_tokens if self.window is None else min(self.sinks + self.window, max_tokens)

    def attend_cached(self, q, k, v, cache, mask: Mask, bias, x) -> Tensor:
        if self.window is None:
            return super().attend_cached(q, k, v, cache, mask, bias, x)
        if q.shape[2] == 1:
            cache.store(k, v)
            return self._attend_newest(q, cache, mask, bias)
        keys, values, positions = cache.ordered()
        new = torch.arange(cache.length, cache.length + k.shape[2], device=k.device)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        out = self._attend_at(q, keys, values, mask, bias, torch.cat([positions, new]))
        cache.store(k, v)
        return out

    def flops(self, n_queries: int, n_keys: int) -> float:
        if self.window is None:
            return super().flops(n_queries, n_keys)
        seen = torch.arange(n_keys - min(n_queries, n_keys), n_keys) + 1  # keys up to each query's own
        inside = seen.clamp(max=self.window) + (seen - self.window).clamp(min=0, max=self.sinks)
        return softmax_flops(self, inside.sum().item())


def attend_window(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: ScoreBias | None,
    *,
    window: int,
    sinks: int = 0,
    scale: float,
    dropout: float = 0.0,
    key_positions: Tensor | None = None,
    spacing: int = 1,
    everyones: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, str]:
    """Softmax over the last W keys up to the query's own and the first ``sinks``: (B, H, Tq, Dv) and the kernel that ran.

    Time and memory O(T·(W + sinks)). Arguments as in `attend_blocks`; here Tq may exceed Tk. The ``key_positions`` of
    tokens that follow one another lie ``spacing`` apart.
    """
    extra = q.shape[2] - k.shape[2]
    if extra > 0:  # queries before the first key see nothing
        out, kernel = attend_window(
            q[:, :, extra:], k, v, mask, bias, window=window, sinks=sinks, scale=scale, dropout=dropout,
            key_positions=key_positions, spacing=spacing, everyones=everyones,
        )  # fmt: skip
        return F.pad(out, (0, 0, extra, 0)), kernel
    c = window_block(window)
    n_blocks, reach = -(-k.shape[2] // c), -(-(window - 1) // c)
    blocks: Tensor | int = min(reach, n_blocks - 1) + 1
    if sinks and n_blocks > reach + 1:
        blocks = window_and_sinks(n_blocks, reach, -(-sinks // c), q.device)
    return attend_blocks(
        q, k, v, mask, bias, blocks=blocks, block_size=c, window=window * spacing, sinks=sinks, scale=scale,
        dropout=dropout, key_positions=key_positions, everyones=everyones,
    )  # fmt: skip


def window_block(window: int) -> int:
    """Queries computed together: about half a window, so that a block reads 3/2 W keys."""
    return next((c for c in (32, 64, 128) if 2 * c >= window - 1), 256)


@constant_result
def window_and_sinks(n_blocks: int, reach: int, first: int, device: torch.device) -> Tensor:
    """(N, m): each block, the ``reach`` before it, and those of the ``first`` ones that are not among them; -1 for none."""
    return _window_and_sinks(n_blocks, reach, first, device)


@lru_cache(maxsize=32)
def _window_and_sinks(n_blocks: int, reach: int, first: int, device: torch.device) -> Tensor:
    n = torch.arange(n_blocks, device=device)[:, None]
    near = (n - torch.arange(reach + 1, device=device)).clamp(min=-1)
    far = torch.arange(first, device=device).expand(n_blocks, -1)
    return torch.cat([near, far.masked_fill(far >= n - reach, -1)], 1)
