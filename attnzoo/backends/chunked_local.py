"""Softmax attention inside fixed chunks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.contract import Capabilities, Options, ScoreBias, softmax_flops
from attnzoo.errors import RequestError
from attnzoo.kernels.blocks import attend_blocks
from attnzoo.kernels.library import WithLibraries
from attnzoo.kernels.ring import RingCache, attend_ring
from attnzoo.masks import Mask
from attnzoo.registry import register


@dataclass(frozen=True)
class ChunkOptions(Options):
    """chunk: c, tokens a chunk, counted from the first slot."""

    chunk: int = 64

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise RequestError(f"chunk={self.chunk}: a chunk has at least 1 token")


@register("chunked_local")
class ChunkedLocal(WithLibraries):
    """Softmax attention over the query's own chunk of c tokens: i // c = j // c, under the mask.

    Cost: time and memory O(T·c); under plain causality the chunks are causal sequences of their own and no mask is built.
    State: the current chunk, 2·c·G·D, whatever T. Gives up every look across a chunk's edge: the first token of a chunk
    sees itself only, so layers of this kind need others beside them (Llama 4: three of four, with RoPE; the fourth sees
    everything, without positions). Departures: chunks count from the first slot, also with left padding or documents;
    QK-norm comes before RoPE (in Llama 4 behind it, without a gain).
    Use: for the cheap layers of a hybrid, beside layers that see everything.
    """

    Options = ChunkOptions
    source = "Llama 4 (Meta, 2025): local layers of iRoPE, attention_chunk_size"
    capabilities = Capabilities(time=1.0, memory=1.0, state=0.0, shift_invariant=False, products=True)
    kernels = ("auto", "blocks", "flex")
    options: ChunkOptions

    def pattern(self, i: Tensor, j: Tensor) -> Tensor:
        c = self.options.chunk
        return i.div(c, rounding_mode="floor") == j.div(c, rounding_mode="floor")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        extra = q.shape[2] - k.shape[2]
        if extra > 0:  # queries before the first key see nothing
            return F.pad(self.attend(q[:, :, extra:], k, v, mask, bias, x), (0, 0, extra, 0))
        return self._attend_from(q, k, v, mask, bias, 0)

    def _attend_from(self, q, k, v, mask: Mask, bias: ScoreBias | None, first: int) -> Tensor:
        """The keys lie at positions from ``first`` on, the start of a chunk."""
        n_keys, c = k.shape[2], self.options.chunk
        positions = torch.arange(first, first + n_keys, device=q.device) if first else None
        if self.options.kernel == "flex":
            return self.by_flex(q, k, v, mask, bias, key_positions=positions)[0]
        out, kernel = attend_blocks(
            q, k, v, mask, bias, blocks=1, block_size=c if c < n_keys else n_keys, scale=self.scale,
            dropout=self.dropout_now, key_positions=positions,
        )  # fmt: skip
        self.ran(kernel)
        return out

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None) -> RingCache:
        slots = super().new_cache(batch_size, min(self.options.chunk, max_tokens), device, dtype, value_dim)
        return RingCache(slots.keys, slots.values, max_tokens)

    def cache_bytes(self, batch_size, max_tokens, dtype, value_dim=None) -> int:
        return super().cache_bytes(batch_size, min(self.options.chunk, max_tokens), dtype, value_dim)

    def attend_cached(self, q, k, v, cache: RingCache, mask: Mask, bias, x) -> Tensor:
        inside = cache.length % self.options.chunk  # tokens of the current chunk: the ring's first slots, in order
        if q.shape[2] == 1:
            cache.store(k, v)
            out, kernel = attend_ring(
                q, cache, mask, bias, self.pattern, scale=self.scale, dropout=self.dropout_now, read=slice(inside + 1)
            )
            self.ran(kernel)
            return out
        keys, values = (torch.cat([t[:, :, :inside], new], 2) for t, new in ((cache.keys, k), (cache.values, v)))
        out = self._attend_from(q, keys, values, mask, bias, cache.length - inside)
        cache.store(k, v)
        return out

    def flops(self, n_queries: int, n_keys: int) -> float:
        rows = torch.arange(n_keys - min(n_queries, n_keys), n_keys)
        return softmax_flops(self, (rows % self.options.chunk + 1).sum().item())
