"""Bugs in rules with a carried state, a normaliser or gates."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F

from attnzoo.backends.linear import Linear
from attnzoo.cache import KVCache
from attnzoo.contract import Attention, Capabilities
from attnzoo.kernels.features import elu_plus_one
from attnzoo.kernels.gates import wide
from attnzoo.masks import Mask


class SoundLinear(Linear):
    """Linear attention in two visible steps, without a fault: sums of φ(k) v^T and of φ(k), then their ratio."""

    capabilities = replace(Linear.capabilities, time=2.0, memory=2.0, masks=frozenset({"key_padding"}))

    def attend(self, q, k, v, mask, bias, x):
        self.ran("planted/linear")
        kind = torch.float64 if q.dtype == torch.float64 else torch.float32
        fq, fk = self.feature(q.to(kind)), self.feature(self.repeat_kv(k).to(kind))
        fq = fq / fq.amax(-1, keepdim=True).clamp(min=1e-37).detach()
        if mask.key_padding is not None:
            fk = fk * mask.key_padding[:, None, :, None]
        similarity = self.hide(fq @ fk.mT)
        return self.ratio(similarity, self.repeat_kv(v).to(kind)).to(v.dtype)

    def feature(self, t):
        return elu_plus_one(t)

    def hide(self, similarity):
        return similarity.tril(similarity.shape[3] - similarity.shape[2])

    def total(self, similarity):
        return similarity.sum(-1, keepdim=True)

    def ratio(self, similarity, v):
        total = self.total(similarity)
        return similarity @ v / total.masked_fill(total == 0, 1.0)


class NormaliserOverHeads(SoundLinear):
    """the normaliser summed over the heads instead of over time"""

    caught_by = "head_groups"

    def total(self, similarity):
        return similarity.sum(-1, keepdim=True).mean(1, keepdim=True)


class DenominatorNotInverted(SoundLinear):
    """multiplied by the normaliser where it must be divided"""

    caught_by = "definition"

    def ratio(self, similarity, v):
        return similarity @ v * self.total(similarity)


class NormaliserPeeks(SoundLinear):
    """the normaliser sums over all keys, the future included"""

    caught_by = "future_by_gradient"

    def ratio(self, similarity, v):
        return self.hide(similarity) @ v / self.total(similarity).clamp(min=1e-30)

    def hide(self, similarity):
        return super().hide(similarity) if similarity.shape[2] == 1 else _once(self, similarity)


def _once(module, similarity):
    """The first call of a pass leaves the similarity whole, the second hides it."""
    module.seen = not getattr(module, "seen", False)
    return similarity if module.seen else SoundLinear.hide(module, similarity)


class OwnTokenLeftOut(SoundLinear):
    """the sums stop one token early, as with buckets that leave out their own"""

    caught_by = "definition"

    def hide(self, similarity):
        return similarity.tril(similarity.shape[3] - similarity.shape[2] - 1)


class FeatureUnderflows(SoundLinear):
    """elu(x) + 1 as written: exactly 0 at x = -20"""

    caught_by = "extreme_inputs"

    def feature(self, t):
        return F.elu(t) + 1


class ChunkSeesFuture(SoundLinear):
    """the state of the own chunk is added before the chunk is finished"""

    caught_by = "future_by_gradient"

    def hide(self, similarity):
        n = torch.arange(similarity.shape[-1], device=similarity.device) // 8
        seen = (n[:, None] >= n[None, :])[-similarity.shape[2] :]
        return similarity * seen if similarity.shape[2] <= similarity.shape[3] else super().hide(similarity)


class StateWithoutKeySum(Linear):
    """the state is carried from call to call without the key sum"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        cache.state = torch.cat([cache.state[..., :-1], torch.zeros_like(cache.state[..., -1:])], -1)
        return super().attend_cached(q, k, v, cache, mask, bias, x)


class StateWithPadding(Linear):
    """padding is left out of the output but enters the state"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        state, kind = cache.state, wide(q.dtype)
        out = super().attend_cached(q, k, v, cache, mask, bias, x)
        if mask.key_padding is not None:
            t = self.terms(q.to(kind), k.to(kind), v.to(kind), x)
            cache.state = state + t.k.mT @ t.v
        return out


class HalfPrecisionState(Linear):
    """the state is kept in bfloat16"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        out = super().attend_cached(q, k, v, cache, mask, bias, x)
        cache.state = cache.state.bfloat16().to(cache.state.dtype)
        return out


class StateAcrossDocuments(Linear):
    """the state runs on into the next document"""

    caught_by = "documents"

    def attend(self, q, k, v, mask, bias, x):
        return super().attend(q, k, v, replace(mask, documents=None), bias, x)


class GatedCache(KVCache):
    """Keys and values with the inputs their gates are computed from."""

    def __init__(self, keys, values, x):
        super().__init__(keys, values)
        self.x = x

    @property
    def nbytes(self):
        return super().nbytes + self.x.nbytes


class Gated(Attention):
    """A causal sum under gates of the layer's input, without a fault: O_i = Σ_{j≤i} (q_i·k_j) g_j v_j, g = σ(x w)."""

    source = "arXiv:2312.06635"
    capabilities = Capabilities(
        masks=frozenset({"key_padding"}), bias=False, dropout=False, cross=False, needs_x=True, state=1.0
    )

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.gate = nn.Parameter(torch.ones(self.d_model, self.n_heads) / self.d_model)

    def gates(self, x):
        return (x @ self.gate.to(x.dtype)).mT.sigmoid()[:, :, None, :]  # (B, H, 1, T)

    def weights(self, q, k, visible, bias, x):
        return (q @ k.mT * self.scale).masked_fill(~visible, 0.0) * Gated.gates(self, x)

    def attend(self, q, k, v, mask, bias, x):
        self.ran("planted/gated")
        visible = mask.dense(q.shape[2], k.shape[2], q.device)
        scores = (q * self.scale) @ self.repeat_kv(k).mT
        return (scores.masked_fill(~visible, 0.0) * self.gates(x)) @ self.repeat_kv(v)

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None):
        plain = super().new_cache(batch_size, max_tokens, device, dtype, value_dim)
        x = torch.zeros(batch_size, max_tokens, self.d_model, device=device, dtype=dtype)
        return GatedCache(plain.keys, plain.values, x)

    def cache_bytes(self, batch_size, max_tokens, dtype):
        return (
            super().cache_bytes(batch_size, max_tokens, dtype) + batch_size * max_tokens * self.d_model * dtype.itemsize
        )

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        cache.x[:, cache.length : cache.length + x.shape[1]] = x
        keys, values = cache.append(k, v)
        return self.attend(q, keys, values, mask, bias, cache.x[:, : cache.length])


class GateOneStepAhead(Gated):
    """the gate of token j is read from token j + 1"""

    caught_by = "future_by_gradient"

    def gates(self, x):
        return super().gates(x).roll(-1, -1)


class GateWithoutGradient(Gated):
    """the gate's parameter gets no gradient"""

    caught_by = "gradients"

    def gates(self, x):
        return (x @ self.gate.detach().to(x.dtype)).mT.sigmoid()[:, :, None, :]


class GateForgottenInDecoding(Gated):
    """decoding gates past tokens with the newest token's input"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        cache.x[:, : cache.length] = x[:, :1]
        return super().attend_cached(q, k, v, cache, mask, bias, x)


class XNotRequired(Gated):
    """runs without the input it needs, with gates of one half"""

    caught_by = "declared_or_refused"

    def forward(self, q, k, v, mask=None, bias=None, x=None):
        x = torch.zeros(q.shape[0], q.shape[2], self.d_model, dtype=q.dtype, device=q.device) if x is None else x
        return super().forward(q, k, v, Mask() if mask is None else mask, bias, x)
