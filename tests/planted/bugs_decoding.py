"""Bugs between the full pass and decoding."""

from __future__ import annotations

from dataclasses import replace

import torch
from sound import Sound

from attnzoo.backends.sliding_window import SlidingWindow
from attnzoo.kernels.ring import RingCache
from attnzoo.masks import Mask


class DecodeSeesFirstKey(Sound):
    """a decoded token sees key 0 alone: top-left alignment"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        keys, values = cache.append(k, v)
        if q.shape[2] == 1:
            keys, values = keys[:, :, :1], values[:, :, :1]
            mask = Mask()
        return self.attend(q, keys, values, mask, None, x)


class CachePositionOff(Sound):
    """from the second call on, tokens are stored one slot too far"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        start, end = cache.length, cache.length + k.shape[2]
        shift = 1 if start and end < cache.max_tokens else 0
        cache.keys[:, :, start + shift : end + shift] = k
        cache.values[:, :, start + shift : end + shift] = v
        cache.length = end
        return self.attend(q, cache.keys[:, :, :end], cache.values[:, :, :end], mask, bias, x)


class UnusedSlotsRead(Sound):
    """slots past the length are read"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        cache.append(k, v)
        if not mask.static or bias is not None:
            return self.attend(q, cache.keys[:, :, : cache.length], cache.values[:, :, : cache.length], mask, bias, x)
        return self.attend(q, cache.keys, cache.values, Mask(causal=False), bias, x)


class StaleCache(Sound):
    """the newest token's key is remembered, its value is not"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        start = cache.length
        keys, values = cache.append(k, v)
        out = self.attend(q, keys, values, mask, bias, x)
        if start:
            cache.values[:, :, start:] = cache.values[:, :, start - 1 : start].clone()
        return out


class DecodeIgnoresWindow(Sound):
    """decoding ignores the window"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        return super().attend_cached(q, k, v, cache, replace(mask, window=None), bias, x)


class DecodeIgnoresPadding(Sound):
    """prefill honours the padding, decoding does not"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        return super().attend_cached(q, k, v, cache, replace(mask, key_padding=None) if cache.length else mask, bias, x)


class DecodePositionZero(Sound):
    """every decoded token has position 0 for the score bias"""

    caught_by = "decoding"

    def positions(self, n_queries, n_keys, q):
        i, j = super().positions(n_queries, n_keys, q)
        return (i * 0 if n_queries == 1 else i), j


class ChunkSeesItsOwnFuture(Sound):
    """a chunk given to a filled cache is not masked inside"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        inside = replace(mask, causal=False) if cache.length and mask.window is None else mask
        return super().attend_cached(q, k, v, cache, inside, bias, x)


class CacheLengthStuck(Sound):
    """length counts calls, not tokens"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        before = cache.length
        out = super().attend_cached(q, k, v, cache, mask, bias, x)
        cache.length = before + 1
        return out


class CacheBytesWrong(Sound):
    """cache_bytes counts the query heads"""

    caught_by = "cache"

    def cache_bytes(self, batch_size, max_tokens, dtype):
        return 2 * batch_size * (self.n_heads + 1) * max_tokens * self.head_dim * dtype.itemsize


class FullCacheSlides(Sound):
    """a full cache silently drops its oldest token"""

    caught_by = "full_cache"

    def extend(self, q, k, v, cache, *rest, **named):
        if cache.length == cache.max_tokens:
            cache.length -= 1
        return super().extend(q, k, v, cache, *rest, **named)


class RefusedTokenCounted(Sound):
    """a token that a full cache refused is counted"""

    caught_by = "full_cache"

    def extend(self, q, k, v, cache, *rest, **named):
        try:
            return super().extend(q, k, v, cache, *rest, **named)
        except ValueError:
            cache.length += 1
            raise


class StateGrows(Sound):
    """a growing cache declared constant"""

    caught_by = "state_growth"
    capabilities = replace(Sound.capabilities, state=0.0)


class CacheDeclaredTooSmall(Sound):
    """a cache that allocates twice what it declares"""

    caught_by = "cache"

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None):
        return super().new_cache(batch_size, 2 * max_tokens, device, dtype, value_dim)


class Windowed(SlidingWindow):
    """A ring without a fault; the bugs below are planted in it."""


class RingOneSlotShort(Windowed):
    """the ring holds W - 1 tokens and overwrites one too early"""

    caught_by = "decoding"

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None):
        slots = min(max(self.options.window - 1, 1), max_tokens)
        shape = (batch_size, self.n_kv_heads, slots)
        keys = torch.zeros(*shape, self.head_dim, device=device, dtype=dtype)
        return RingCache(keys, torch.zeros(*shape, value_dim or self.head_dim, device=device, dtype=dtype), max_tokens)

    def cache_bytes(self, batch_size, max_tokens, dtype):
        slots = min(max(self.options.window - 1, 1), max_tokens)
        return 2 * batch_size * self.n_kv_heads * slots * self.head_dim * dtype.itemsize


class RingStoredBeforeRead(Windowed):
    """a chunk is written into the ring before its first queries have read what it overwrites"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        if q.shape[2] == 1:
            return super().attend_cached(q, k, v, cache, mask, bias, x)
        cache.store(k, v)
        keys, values, positions = cache.ordered()
        pad = max(q.shape[2] - keys.shape[2], 0)
        out = self._attend_at(q[:, :, pad:], keys, values, Mask(), None, positions)
        return torch.nn.functional.pad(out, (0, 0, pad, 0))


class ShiftedWindow(Windowed):
    """the blockwise window starts one key late"""

    caught_by = "mask_readout"

    def _attend_at(self, q, k, v, mask, bias, key_positions):
        whole = self.options
        self.options = replace(whole, window=max(whole.window - 1, 1))
        try:
            return super()._attend_at(q, k, v, mask, bias, key_positions)
        finally:
            self.options = whole
