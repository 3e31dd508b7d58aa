"""Rules with caches of their own, written from scratch."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from attnzoo import Attention, Capabilities, Options


class Cache:
    """Named tensors, batch first, room for ``max_tokens`` tokens and how many have come."""

    def __init__(self, max_tokens, **tensors):
        self.max_tokens, self.length = max_tokens, 0
        self.names = tuple(tensors)
        vars(self).update(tensors)

    @property
    def nbytes(self):
        return sum(getattr(self, name).nbytes for name in self.names)


@dataclass(frozen=True)
class RingOptions(Options):
    window: int = 16


class OwnRing(Attention):
    """softmax over the last ``window`` keys; decoding goes token by token through a ring of that many slots."""

    Options = RingOptions
    source = "arXiv:1904.10509"
    capabilities = Capabilities(
        masks=frozenset({"key_padding"}), bias=False, dropout=False, grouped_heads=False, state=0.0
    )

    def pattern(self, i, j):
        return (j <= i) & (j > i - self.options.window)

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None):
        slots, dtype = min(self.options.window, max_tokens), dtype or torch.get_default_dtype()
        shape, how = (batch_size, self.n_heads, slots), {"device": device, "dtype": dtype}
        return Cache(
            max_tokens, keys=torch.zeros(*shape, self.head_dim, **how),
            values=torch.zeros(*shape, value_dim or self.head_dim, **how),
        )  # fmt: skip

    def cache_bytes(self, batch_size, max_tokens, dtype):
        return 2 * batch_size * self.n_heads * min(self.options.window, max_tokens) * self.head_dim * dtype.itemsize

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        self.ran("own_ring/steps")
        slots, outs = cache.keys.shape[2], []
        for t in range(k.shape[2]):
            slot = cache.length % slots
            cache.keys[:, :, slot], cache.values[:, :, slot] = k[:, :, t], v[:, :, t]
            cache.length += 1
            used = min(cache.length, slots)
            order = (cache.length - used + torch.arange(used, device=k.device)) % slots
            outs.append(self.row(q[:, :, t : t + 1], cache, order, mask, used))
        return torch.cat(outs, 2)

    def row(self, q, cache, order, mask, used):
        keys, values = cache.keys[:, :, order], cache.values[:, :, order]
        visible = torch.ones(1, 1, 1, used, dtype=torch.bool, device=q.device)
        if mask.key_padding is not None:
            visible = self.hidden(mask.key_padding, cache.length, used)[:, None, None]
        wide = torch.promote_types(q.dtype, torch.float32)
        return (super().weights(q.to(wide), keys.to(wide), visible, None, None) @ values.to(wide)).to(q.dtype)

    def hidden(self, padding, end, used):
        return padding[:, end - used : end]


class LeakySum(Attention):
    """S_t = a_h S_(t-1) + k_t v_tᵀ, o_t = q_t S_t / (1 + |q_t|): a loop over time, a_h learned. It honours no mask field."""

    source = "arXiv:2307.08621"
    capabilities = Capabilities(
        masks=frozenset(), grouped_heads=False, bias=False, dropout=False, scale=False, cross=False,
        dtypes=(torch.float32, torch.float64), time=1.0, memory=1.0, state=0.0,
    )  # fmt: skip

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.leak = nn.Parameter(torch.linspace(1, 3, self.n_heads))

    def weights(self, q, k, visible, bias, x):
        n = torch.arange(k.shape[2], device=k.device)
        behind = (n[:, None] - n).clamp(min=0)
        decay = self.leak.to(q.dtype).sigmoid()[:, None, None] ** behind
        return (self.unit(q) @ k.mT * decay).masked_fill(~visible, 0.0)

    def unit(self, q):
        return q / (1 + q.norm(dim=-1, keepdim=True))

    def attend(self, q, k, v, mask, bias, x):
        state = q.new_zeros(q.shape[0], self.n_heads, self.head_dim, v.shape[3])
        return self.run(self.unit(q), k, v, state)[0]

    @torch.compiler.disable  # or it would be unrolled, anew for every length
    def run(self, q, k, v, state):
        self.ran("leaky_sum/loop")
        keep, outs = self.leak.to(q.dtype).sigmoid()[:, None, None], []
        # unbound once: k[:, :, t] would have a gradient of the size of k for every token
        for t, (q_t, k_t, v_t) in enumerate(zip(q.unbind(2), k.unbind(2), v.unbind(2), strict=True)):
            state = self.step(state, keep, k_t[..., None] * v_t[..., None, :], t)
            outs.append((q_t[..., None, :] @ state)[..., 0, :])
        return torch.stack(outs, 2), state

    def step(self, state, keep, new, t):
        return keep * state + new

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None):
        shape = (batch_size, self.n_heads, self.head_dim, value_dim or self.head_dim)
        return Cache(max_tokens, state=torch.zeros(shape, device=device, dtype=dtype))

    def cache_bytes(self, batch_size, max_tokens, dtype):
        return batch_size * self.n_heads * self.head_dim**2 * dtype.itemsize

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        out, cache.state = self.run(self.unit(q), k, v, cache.state)
        cache.length += k.shape[2]
        return out


class InputBias(Attention):
    """softmax(S + (x_j w_h)): a bias from the key's own input, which the cache has to remember beside the keys."""

    source = "a test"
    capabilities = Capabilities(needs_x=True, cross=False)

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.salience = nn.Parameter(torch.randn(self.d_model, self.n_heads) / self.d_model)

    def added(self, x):
        return (x @ self.salience.to(x.dtype)).mT[:, :, None]  # (B, H, 1, Tk)

    def weights(self, q, k, visible, bias, x):
        return super().weights(q, k, visible, self.added(x) + (0 if bias is None else bias), None)

    def attend(self, q, k, v, mask, bias, x):
        return self.over(q, k, v, mask, bias, self.added(x.to(torch.promote_types(q.dtype, torch.float32))))

    def over(self, q, k, v, mask, bias, added):
        self.ran("input_bias/plain")
        n_queries, n_keys, wide = q.shape[2], k.shape[2], added.dtype
        i = torch.arange(n_keys - n_queries, n_keys, device=q.device)[:, None]
        if bias is not None:
            added = added + bias.block(i, torch.arange(n_keys, device=q.device)[None]).to(wide)
        visible = mask.dense(n_queries, n_keys, q.device)
        weights = super().weights(q.to(wide), self.repeat_kv(k).to(wide), visible, added, None)
        weights = nn.functional.dropout(weights, self.dropout_now)
        return (weights @ self.repeat_kv(v).to(wide)).to(q.dtype)

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None):
        plain = super().new_cache(batch_size, max_tokens, device, dtype, value_dim)
        wide = torch.promote_types(plain.keys.dtype, torch.float32)
        added = torch.zeros(batch_size, self.n_heads, 1, max_tokens, device=device, dtype=wide)
        return Cache(max_tokens, keys=plain.keys, values=plain.values, added=added)

    def cache_bytes(self, batch_size, max_tokens, dtype):
        wide = torch.promote_types(dtype, torch.float32)
        return (
            super().cache_bytes(batch_size, max_tokens, dtype) + batch_size * self.n_heads * max_tokens * wide.itemsize
        )

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        start, end = cache.length, cache.length + k.shape[2]
        cache.keys[:, :, start:end], cache.values[:, :, start:end] = k, v
        cache.added[..., start:end] = self.added(x.to(cache.added.dtype))
        cache.length = end
        return self.over(q, *(t[:, :, :end] for t in (cache.keys, cache.values)), mask, bias, cache.added[..., :end])


class ShortConvolution(Attention):
    """softmax of q_i · (k_j + c_h k_(j-1)): the cache keeps mixed keys and the last one as it came."""

    source = "a test"
    capabilities = Capabilities(masks=frozenset({"bidirectional"}), bias=False, dropout=False)

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.mix = nn.Parameter(torch.full((self.n_kv_heads,), 0.5))

    def mixed(self, k, before):
        """k (B, G or H, T, D) with a share of the key before, ``before`` being the one before the first."""
        share = self.mix.to(k.dtype).repeat_interleave(k.shape[1] // self.n_kv_heads)[:, None, None]
        return k + share * torch.cat([before, k[:, :, :-1]], 2)

    def weights(self, q, k, visible, bias, x):
        return super().weights(q, self.mixed(k, torch.zeros_like(k[:, :, :1])), visible, None, None)

    def attend(self, q, k, v, mask, bias, x):
        wide = k.to(torch.promote_types(k.dtype, torch.float32))
        return self.over(q, self.mixed(wide, torch.zeros_like(wide[:, :, :1])), v, mask)

    def over(self, q, k, v, mask):
        self.ran("short_convolution/plain")
        visible = mask.dense(q.shape[2], k.shape[2], q.device)
        weights = super().weights(q.to(k.dtype), self.repeat_kv(k), visible, None, None)
        return (weights @ self.repeat_kv(v).to(k.dtype)).to(q.dtype)

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None):
        plain = super().new_cache(batch_size, max_tokens, device, dtype, value_dim)
        wide = torch.promote_types(plain.keys.dtype, torch.float32)
        return Cache(
            max_tokens, mixed=plain.keys.to(wide), held=plain.values, last=plain.keys[:, :, :1].to(wide).clone()
        )

    def cache_bytes(self, batch_size, max_tokens, dtype):
        a_key = batch_size * self.n_kv_heads * self.head_dim * torch.promote_types(dtype, torch.float32).itemsize
        return super().cache_bytes(batch_size, max_tokens, dtype) // 2 + (max_tokens + 1) * a_key

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        start, cache.length = cache.length, cache.length + k.shape[2]
        wide = k.to(cache.mixed.dtype)
        cache.mixed[:, :, start : cache.length] = self.mixed(wide, cache.last)
        cache.held[:, :, start : cache.length] = v
        self.remember(cache, wide)
        return self.over(q, cache.mixed[:, :, : cache.length], cache.held[:, :, : cache.length], mask)

    def remember(self, cache, k):
        cache.last = k[:, :, -1:].clone()


class HalfValues(Attention):
    """Softmax attention that takes values of half the head dim, and no others."""

    source = "a test"
    capabilities = Capabilities(bias=False, dropout=False)

    @classmethod
    def refusals(cls, request):
        if request.value_dim is not None and 2 * request.value_dim != request.head_dim:
            yield f"values of {request.head_dim} / 2, not {request.value_dim}"

    def attend(self, q, k, v, mask, bias, x):
        self.ran("half_values/plain")
        visible, wide = mask.dense(q.shape[2], k.shape[2], q.device), torch.promote_types(q.dtype, torch.float32)
        scores = q.to(wide) @ self.repeat_kv(k).to(wide).mT * self.scale
        empty = ~visible.any(-1, keepdim=True)
        weights = scores.masked_fill(~visible, -math.inf).masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
        return (weights @ self.repeat_kv(v).to(wide)).to(v.dtype)
