"""Rules written out over all pairs, each unusual in one respect; decoding is the inherited one."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from attnzoo import Attention, Capabilities, Mask, Options


class HeadTemperature(Attention):
    """softmax(S / τ_h), τ_h = exp(θ_h) learned; torch's fused kernel on queries that are scaled first."""

    source = "a test"
    capabilities = Capabilities()

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.log_temperature = nn.Parameter(torch.zeros(self.n_heads))

    def temperature(self, like):
        return self.log_temperature.to(like.dtype).exp()[:, None, None]

    def weights(self, q, k, visible, bias, x):
        return super().weights(q / self.temperature(q), k, visible, bias, x)

    def attend(self, q, k, v, mask, bias, x):
        self.ran("head_temperature/sdpa")
        i, j = positions(q, k)
        visible = mask.dense(len(i), j.shape[1], q.device)
        if bias is not None:
            visible = self.added(bias.block(i, j).to(q.dtype)).masked_fill(~visible, -math.inf)
        out = F.scaled_dot_product_attention(
            q / self.temperature(q),
            k,
            v,
            visible,
            self.dropout_now,
            scale=self.scale,
            enable_gqa=q.shape[1] > k.shape[1],
        )
        return out.masked_fill(~mask.dense(len(i), j.shape[1], q.device).any(-1, keepdim=True), 0.0)

    def added(self, block):
        return block


class BuiltInAlibi(Attention):
    """softmax(S - m_h (i - j)), the slopes m_h its own, in float32 whatever the inputs are."""

    source = "arXiv:2108.12409, slopes 1/(h + 1)"
    capabilities = Capabilities()

    def distances(self, q, k):
        i, j = positions(q, k)
        slopes = 1 / torch.arange(1, self.n_heads + 1, device=q.device, dtype=torch.float64)
        return slopes[:, None, None] * (i - j)

    def weights(self, q, k, visible, bias, x):
        return super().weights(q, k, visible, (0 if bias is None else bias) - self.distances(q, k), x)

    def attend(self, q, k, v, mask, bias, x):
        self.ran("built_in_alibi/plain")
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = q.to(wide) @ self.repeat_kv(k).to(wide).mT * self.scale - self.penalty(q, k).to(wide)
        if bias is not None:
            scores = scores + bias.block(*positions(q, k)).to(wide)
        visible = mask.dense(q.shape[2], k.shape[2], q.device)
        scores = scores.masked_fill(~visible, torch.finfo(wide).min)  # equal weights where nothing is seen, then none
        weights = scores.softmax(-1) * visible.any(-1, keepdim=True)
        return F.dropout(weights.to(v.dtype), self.dropout_now) @ self.repeat_kv(v)

    def penalty(self, q, k):
        return self.distances(q, k)


class Cosine(Attention):
    """softmax(exp(θ) cos(q, k)): only `weights` is written, and scale and length of q and k do not matter."""

    source = "arXiv:2010.04245"
    capabilities = Capabilities(bias=False, dropout=False, scale=False)

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def weights(self, q, k, visible, bias, x):
        scores = self.log_scale.to(q.dtype).exp() * self.unit(q) @ self.unit(k).mT
        empty = ~visible.any(-1, keepdim=True)
        return scores.masked_fill(~visible, -math.inf).masked_fill(empty, 0.0).softmax(-1) * ~empty

    def unit(self, t):
        return F.normalize(t, dim=-1, eps=1e-6)


class SquaredRelu(Attention):
    """relu(S)² over the number of visible keys: rows do not sum to 1, and may be 0."""

    source = "arXiv:2104.07012, squared"
    capabilities = Capabilities(bias=False, dropout=False)

    def weights(self, q, k, visible, bias, x):
        return (q @ k.mT * self.scale).relu().square().masked_fill(~visible, 0.0) / self.count(visible)

    def count(self, visible):
        return visible.sum(-1, keepdim=True).clamp(min=1)


class Signed(Attention):
    """tanh(S) over the number of visible keys: weights of either sign. In float64 inside, whatever comes."""

    source = "a test"
    capabilities = Capabilities(dropout=False)

    def weights(self, q, k, visible, bias, x):
        scores = (q @ k.mT * self.scale + (0 if bias is None else bias)).tanh()
        return scores * visible / visible.sum(-1, keepdim=True).clamp(min=1)

    def attend(self, q, k, v, mask, bias, x):
        self.ran("signed/float64")
        visible = mask.dense(q.shape[2], k.shape[2], q.device)
        added = None if bias is None else bias.block(*positions(q, k)).double()
        k, wide = self.repeat_kv(k), self.repeat_kv(v).double()
        return self.rounded(self.weights(q.double(), k.double(), visible, added, x) @ wide, v.dtype, bias)

    def rounded(self, out, dtype, bias):
        return out.to(dtype)


@dataclass(frozen=True)
class DilationOptions(Options):
    reach: int = 16


class HeadDilation(Attention):
    """softmax over every (h + 1)-th key of the last ``reach``·(h + 1): a pattern of each head's own."""

    Options = DilationOptions
    source = "a test"
    capabilities = Capabilities(bias=False, dropout=False, masks=frozenset({"key_padding", "documents", "window"}))

    def pattern(self, i, j):
        return self.strided(i - j, range(1, self.n_heads + 1))

    def strided(self, behind, steps):
        step = torch.tensor(steps, device=behind.device).view(-1, *(1 for _ in behind.shape))
        return (behind % step == 0) & (behind < step * self.options.reach)

    def attend(self, q, k, v, mask, bias, x):
        self.ran("head_dilation/plain")
        i, j = positions(q, k)
        visible = mask.dense(len(i), j.shape[1], q.device) & self.strided(i - j, self.steps())
        wide = torch.promote_types(q.dtype, torch.float32)
        scores = q.to(wide) @ self.repeat_kv(k).to(wide).mT * self.scale
        top = scores.masked_fill(~visible, -math.inf).amax(-1, keepdim=True).clamp(min=-1e30)
        raised = (scores - top).masked_fill(~visible, -math.inf).exp()
        weights = raised / raised.sum(-1, keepdim=True).clamp(min=1e-30)
        return weights.to(v.dtype) @ self.repeat_kv(v)

    def steps(self):
        return range(1, self.n_heads + 1)


@dataclass(frozen=True)
class TopOptions(Options):
    n_keys: int = 4


class TopKeys(Attention):
    """softmax over the ``n_keys`` best of the visible keys and those that score the same; the choice in float32."""

    Options = TopOptions
    source = "arXiv:2106.06899"
    capabilities = Capabilities(bias=False, dropout=False, dtypes=(torch.float32, torch.float64))

    def weights(self, q, k, visible, bias, x):
        scores = q @ k.mT * self.scale
        chosen = visible & (scores >= self.least(scores, visible))
        empty = ~visible.any(-1, keepdim=True)
        return scores.masked_fill(~chosen, -math.inf).masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)

    def least(self, scores, visible):
        allowed = scores.masked_fill(~visible, -math.inf)
        return allowed.topk(min(self.options.n_keys, scores.shape[-1])).values[..., -1:]


class GatedOutput(Attention):
    """σ(W x_i)_h · softmax(S) v: the gate of a query's own input, one a head, so that Tq ≠ Tk is no trouble."""

    source = "arXiv:2505.06708, a head at a time"
    capabilities = Capabilities(needs_x=True, bias=False)

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.gate = nn.Linear(self.d_model, self.n_heads)

    def gates(self, x):
        return (x @ self.gate.weight.T.to(x) + self.gate.bias.to(x)).sigmoid().mT[..., None]  # (B, H, Tq, 1)

    def weights(self, q, k, visible, bias, x):
        return super().weights(q, k, visible, bias, x) * self.gates(x)

    def attend(self, q, k, v, mask, bias, x):
        self.ran("gated_output/plain")
        visible = mask.dense(q.shape[2], k.shape[2], q.device)
        wide = torch.promote_types(q.dtype, torch.float32)
        weights = super().weights(q.to(wide), self.repeat_kv(k).to(wide), visible, None, None)
        out = F.dropout(weights, self.dropout_now) @ self.repeat_kv(v).to(wide)
        return (out * self.gates(x.to(wide))).to(v.dtype)


@dataclass(frozen=True)
class NearOptions(Options):
    near: int = 8


class NearAndFar(Attention):
    """Half softmax over the last ``near`` keys, half a linear kernel exp(q)·exp(k) over all older ones."""

    Options = NearOptions
    source = "arXiv:2402.18668, the two apart"
    capabilities = Capabilities(bias=False, dropout=False, scale=False, masks=frozenset({"key_padding"}))

    def weights(self, q, k, visible, bias, x):
        i, j = positions(q, k)
        near = visible & self.is_near(i, j)
        local = super().weights(q, k, near, None, None)
        older = visible & ~(j > i - self.options.near)
        linear = (q.softmax(-1) @ self.feature(k).mT).masked_fill(~older, 0.0)
        return (local + linear / linear.sum(-1, keepdim=True).clamp(min=1e-30)) / 2

    def is_near(self, i, j):
        return j > i - self.options.near

    def feature(self, k):
        return (k - k.amax(-1, keepdim=True)).exp()


class Maximum(Attention):
    """The largest of the visible values, channel by channel: no sum of values at all, and no scores."""

    source = "a test"
    capabilities = Capabilities(bias=False, dropout=False, scale=False, weighted_sum=False)

    def define(self, q, k, v, mask=Mask(), bias=None, x=None):
        largest = self.largest(q, self.repeat_kv(v.double()), mask)
        taken = F.one_hot(largest.indices, k.shape[2]).double().mean(-2)
        return self.seen(largest.values, q, k, mask), self.seen(taken, q, k, mask)

    def attend(self, q, k, v, mask, bias, x):
        self.ran("maximum/plain")
        return self.seen(self.largest(q, self.repeat_kv(v), mask).values, q, k, mask)

    def largest(self, q, v, mask):
        visible = mask.dense(q.shape[2], v.shape[2], v.device)[..., None]
        return v[:, :, None].masked_fill(~visible, torch.finfo(v.dtype).min).max(-2)

    def seen(self, t, q, k, mask):
        return t * mask.dense(q.shape[2], k.shape[2], t.device).any(-1, keepdim=True)


def positions(q, k):
    """Of queries (Tq, 1) and keys (1, Tk), the last of both the same."""
    n_queries, n_keys = q.shape[2], k.shape[2]
    i = torch.arange(n_keys - n_queries, n_keys, device=k.device)
    return i[:, None], torch.arange(n_keys, device=k.device)[None]
