"""Softmax with a learned logit in the denominator."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.contract import Capabilities, Options, ScoreBias, masked_softmax
from attnzoo.errors import RequestError
from attnzoo.kernels import sdpa
from attnzoo.kernels.ring import RingCache
from attnzoo.kernels.tiles import attend_tiles
from attnzoo.kernels.window import WindowAttention, attend_window
from attnzoo.masks import Mask
from attnzoo.masks.translate import sdpa_arguments
from attnzoo.registry import register


@dataclass(frozen=True)
class SinkLogitOptions(Options):
    """init: initial logit of every head; 0 is the off-by-one softmax, -inf plain softmax (and stays so: no gradient).
    window: W, keys a query sees, its own included; None for all."""

    others = ({"window": 5},)
    init: float = 0.0
    window: int | None = None

    def __post_init__(self) -> None:
        faults = [] if self.init < float("inf") else [f"init={self.init}: a number below infinity"]
        if self.window is not None and self.window < 1:
            faults.append(f"window={self.window}: at least 1 key, the query's own; null for no window")
        if faults:
            raise RequestError("sink_logit cannot take these options", faults)


@register("sink_logit")
class SinkLogit(WindowAttention):
    """A_ij = exp(s_ij) / (exp(z_h) + Σ_j exp(s_ij)), z_h one learned logit a head: a row may attend to nothing.

    With a window, j > i - W as well.

    The logit is the score of one more key, whose value is 0. It lies in a channel of its own, so that torch's fused
    softmax computes the whole; the channels are padded to a multiple of 8, as its GPU kernels want them.
    Cost: time O(Tq·Tk), memory O(T); a mask that is not plain causality is passed densely, as in sdpa. With a window time
    and memory O(T·W), in blocks. One token decoded is written out, so that the cache is read where it lies.
    State: 2·T·G·D; with a window a ring, 2·W·G·D, whatever T.
    Use: to let a head read nothing, instead of resting on the first token; with windows, which lose that token.
    """

    Options = SinkLogitOptions
    source = "arXiv:2508.10925"
    capabilities = Capabilities(memory=1.0, products=True)
    kernels = ("auto", "sink_logit", "flex")
    options: SinkLogitOptions

    def __init__(self, **sizes) -> None:
        super().__init__(**sizes)
        self.logit = nn.Parameter(torch.full((self.n_heads,), self.options.init))

    @classmethod
    def own(cls, options) -> Capabilities:
        windowed = options.window is not None
        return replace(cls.capabilities, time=1.0, state=0.0) if windowed else cls.capabilities

    @property
    def window(self) -> int | None:
        return self.options.window

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        scores = q @ k.mT * self.scale
        return self._softmax(scores if bias is None else scores + bias, visible)

    def _softmax(self, scores: Tensor, visible: Tensor) -> Tensor:
        """Softmax over the visible scores and the logit; a row that sees no key is 0."""
        logit = self._finite_logit(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        real = visible.expand(*visible.shape[:-1], scores.shape[-1])
        return masked_softmax(torch.cat([logit, scores], -1), F.pad(real, (1, 0), value=True))[..., 1:] * visible

    def _finite_logit(self, dtype: torch.dtype) -> Tensor:
        """At -inf it would make a row that sees no key NaN."""
        return self.logit.to(dtype).clamp(min=torch.finfo(dtype).min)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        n_queries, n_keys, value_dim = q.shape[2], k.shape[2], v.shape[3]
        if self.window is not None:
            return self._attend_at(q, k, v, mask, bias, None)
        if n_queries == 1:
            return self._attend_one(q, k, v, mask, bias, None)
        if self.options.kernel == "flex":
            return self._attend_flex(q, k, v, mask, bias, None)
        bool_mask, is_causal = sdpa_arguments(mask, n_queries, n_keys, q.device)
        attn_mask = sdpa.score_mask(bool_mask, is_causal, bias, q, n_keys)
        is_causal = is_causal and attn_mask is None
        if attn_mask is not None:  # the first key is the logit's: everyone sees it
            attn_mask = F.pad(attn_mask, (1, 0), value=True if attn_mask.dtype == torch.bool else 0.0)
        # under plain causality a first query, whose output is dropped, keeps the matrix square
        q, k, v, (key, value) = self._with_logit(q, k, v)
        q = F.pad(q, (0, 0, int(is_causal), 0))
        k, v = (torch.cat([one.expand(*t.shape[:2], 1, -1), t], 2) for one, t in ((key, k), (value, v)))
        out, kernel = sdpa.call(q, k, v, attn_mask, is_causal, scale=self.scale, dropout=self.dropout_now)
        self.ran(kernel.replace("sdpa/", "sink_logit/"))
        return out[:, :, -n_queries:, :value_dim]

    def _attend_at(self, q, k, v, mask: Mask, bias: ScoreBias | None, key_positions: Tensor | None) -> Tensor:
        assert self.window is not None
        if self.options.kernel == "flex":
            return self._attend_flex(q, k, v, mask, bias, key_positions)
        value_dim = v.shape[3]
        q, k, v, one = self._with_logit(q, k, v)
        out, kernel = attend_window(
            q, k, v, mask, bias, window=self.window, scale=self.scale, dropout=self.dropout_now,
            key_positions=key_positions, everyones=one,
        )  # fmt: skip
        self.ran(kernel.replace("blocks/", "sink_logit/"))
        return out[..., :value_dim]

    def _attend_flex(self, q, k, v, mask: Mask, bias: ScoreBias | None, key_positions: Tensor | None) -> Tensor:
        out, total = self.by_flex(q, k, v, mask, bias, key_positions=key_positions, lse=True)
        assert total is not None
        share = torch.sigmoid(total - self._finite_logit(total.dtype)[:, None])  # of the keys, what the logit leaves
        return out * share[..., None].to(out.dtype)

    def _attend_newest(self, q: Tensor, cache: RingCache, mask: Mask, bias: ScoreBias | None) -> Tensor:
        used = min(cache.length, cache.slots)
        newest = torch.full((1,), cache.length - 1, device=q.device)
        positions = newest, cache.positions()
        return self._attend_one(q, cache.keys[:, :, :used], cache.values[:, :, :used], mask, bias, positions)

    def _attend_one(self, q, k, v, mask: Mask, bias: ScoreBias | None, positions) -> Tensor:
        """One query, written out."""
        self.ran("sink_logit/tiles")
        return attend_tiles(
            q, k, v, mask, bias, scale=self.scale, tile=1, dropout=self.dropout_now, normalise=self._softmax,
            positions=positions,
        )  # fmt: skip

    def _with_logit(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Channels for the logit, and the key (D',) and value (Dv',) that read them: q · scale · key = z_h."""
        extra = 8 - self.head_dim % 8
        # far enough below any score to weigh nothing, and finite: -inf times the other keys' zeros would be NaN
        lowest = torch.finfo(q.dtype).min * min(self.scale, 1.0) / 4
        channel = (self.logit.to(q.dtype).clamp(min=lowest) / self.scale)[:, None, None].expand(*q.shape[:3], 1)
        q = F.pad(torch.cat([q, channel], 3), (0, extra - 1))
        k, v = F.pad(k, (0, extra)), F.pad(v, (0, extra))
        return q, k, v, (F.pad(k.new_ones(1), (self.head_dim, extra - 1)), v.new_zeros(v.shape[3]))
