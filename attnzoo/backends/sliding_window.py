"""Softmax attention over the last W keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.contract import Attention, Capabilities, Options, ScoreBias, softmax_flops
from attnzoo.errors import RequestError
from attnzoo.kernels.blocks import attend_blocks
from attnzoo.kernels.ring import RingCache, attend_ring
from attnzoo.masks import Mask
from attnzoo.registry import register


@dataclass(frozen=True)
class WindowOptions(Options):
    """window: W, the number of keys a query sees, its own included."""

    window: int = 64

    def __post_init__(self) -> None:
        if self.window < 1:
            raise RequestError(f"window={self.window}: a window has at least 1 key, the query's own")


@register("sliding_window")
class SlidingWindow(Attention):
    """Softmax attention over exactly W keys: i - W < j ≤ i.

    Cost: time and memory O(T·W), in blocks of queries that read their own and the previous key blocks.
    State: a ring of W keys and values, 2·W·G·D, whatever T. Gives up every direct look further back than W - 1 tokens.
    """

    Options = WindowOptions
    source = "arXiv:2004.05150, arXiv:2310.06825"
    capabilities = Capabilities(time=1.0, memory=1.0, state=0.0)
    options: WindowOptions

    def pattern(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - self.options.window < j) & (j <= i)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        return self._attend_at(q, k, v, mask, bias, None)

    def _attend_at(self, q, k, v, mask: Mask, bias: ScoreBias | None, key_positions: Tensor | None) -> Tensor:
        extra = q.shape[2] - k.shape[2]
        if extra > 0:  # queries before the first key see nothing
            return F.pad(self._attend_at(q[:, :, extra:], k, v, mask, bias, key_positions), (0, 0, extra, 0))
        c = self.block_size
        n_blocks, reach = -(-k.shape[2] // c), -(-(self.options.window - 1) // c)
        out, kernel = attend_blocks(
            q, k, v, mask, bias, blocks=min(reach, n_blocks - 1) + 1, block_size=c, window=self.options.window,
            scale=self.scale, dropout=self.dropout_now, key_positions=key_positions,
        )  # fmt: skip
        self.ran(kernel)
        return out

    @property
    def block_size(self) -> int:
        """Queries computed together: about half a window, so that a block reads 3/2 W keys."""
        return next((c for c in (32, 64, 128) if 2 * c >= self.options.window - 1), 256)

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None) -> RingCache:
        slots = super().new_cache(batch_size, min(self.options.window, max_tokens), device, dtype, value_dim)
        return RingCache(slots.keys, slots.values, max_tokens)

    def cache_bytes(self, batch_size: int, max_tokens: int, dtype: torch.dtype) -> int:
        return super().cache_bytes(batch_size, min(self.options.window, max_tokens), dtype)

    def attend_cached(self, q, k, v, cache: RingCache, mask: Mask, bias, x) -> Tensor:
        if q.shape[2] == 1:  # softmax does not mind the order of the keys: read the ring as it lies
            cache.store(k, v)
            out, kernel = attend_ring(q, cache, mask, bias, self.pattern, scale=self.scale, dropout=self.dropout_now)
            self.ran(kernel)
            return out
        keys, values, positions = cache.ordered()
        new = torch.arange(cache.length, cache.length + k.shape[2], device=k.device)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        out = self._attend_at(q, keys, values, mask, bias, torch.cat([positions, new]))
        cache.store(k, v)
        return out

    def flops(self, n_queries: int, n_keys: int) -> float:
        w, rows = min(self.options.window, n_keys), min(n_queries, n_keys)
        first = max(min(w - 1, n_keys) - (n_keys - rows), 0)  # rows whose window is not full yet
        seen = sum(range(n_keys - rows + 1, n_keys - rows + first + 1)) + (rows - first) * w
        return softmax_flops(self, seen)
