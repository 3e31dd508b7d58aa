"""Softmax with a learned logit in the denominator."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.contract import Attention, Capabilities, Options, ScoreBias, masked_softmax
from attnzoo.errors import RequestError
from attnzoo.kernels import sdpa
from attnzoo.kernels.tiles import attend_tiles
from attnzoo.masks import Mask
from attnzoo.masks.translate import sdpa_arguments
from attnzoo.registry import register


@dataclass(frozen=True)
class SinkLogitOptions(Options):
    """init: initial logit of every head; 0 is the off-by-one softmax, -inf plain softmax (and stays so: no gradient)."""

    init: float = 0.0

    def __post_init__(self) -> None:
        if not self.init < float("inf"):
            raise RequestError(f"init={self.init}: a number below infinity")


@register("sink_logit")
class SinkLogit(Attention):
    """A_ij = exp(s_ij) / (exp(z_h) + Σ_j exp(s_ij)), z_h one learned logit a head: a row may attend to nothing.

    The logit is the score of one more key, whose value is 0. It lies in a channel of its own, so that torch's fused
    softmax computes the whole; the channels are padded to a multiple of 8, as its GPU kernels want them.
    Cost: time O(Tq·Tk), memory O(T); a mask that is not plain causality is passed densely, as in sdpa. One token
    decoded is written out, so that the cache is read where it lies. State: 2·T·G·D.
    Use: to let a head read nothing, instead of resting on the first token; with windows, which lose that token.
    """

    Options = SinkLogitOptions
    source = "arXiv:2508.10925"
    capabilities = Capabilities(memory=1.0, products=True)
    options: SinkLogitOptions

    def __init__(self, **sizes) -> None:
        super().__init__(**sizes)
        self.logit = nn.Parameter(torch.full((self.n_heads,), self.options.init))

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        scores = q @ k.mT * self.scale
        return self._softmax(scores if bias is None else scores + bias, visible)

    def _softmax(self, scores: Tensor, visible: Tensor) -> Tensor:
        """Softmax over the visible scores and the logit; a row that sees no key is 0."""
        logit = self.logit.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        real = visible.expand(*visible.shape[:-1], scores.shape[-1])
        return masked_softmax(torch.cat([logit, scores], -1), F.pad(real, (1, 0), value=True))[..., 1:] * visible

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        n_queries, n_keys, value_dim = q.shape[2], k.shape[2], v.shape[3]
        if n_queries == 1:
            self.ran("sink_logit/tiles")
            return attend_tiles(
                q, k, v, mask, bias, scale=self.scale, tile=1, dropout=self.dropout_now, normalise=self._softmax
            )
        bool_mask, is_causal = sdpa_arguments(mask, n_queries, n_keys, q.device)
        attn_mask = sdpa.score_mask(bool_mask, is_causal, bias, q, n_keys)
        is_causal = is_causal and attn_mask is None
        if attn_mask is not None:  # the first key is the logit's: everyone sees it
            attn_mask = F.pad(attn_mask, (1, 0), value=True if attn_mask.dtype == torch.bool else 0.0)
        # under plain causality a first query, whose output is dropped, keeps the matrix square
        q, k, v = self._with_logit(q, k, v, first_query=is_causal)
        out, kernel = sdpa.call(q, k, v, attn_mask, is_causal, scale=self.scale, dropout=self.dropout_now)
        self.ran(kernel.replace("sdpa/", "sink_logit/"))
        return out[:, :, -n_queries:, :value_dim]

    def _with_logit(self, q: Tensor, k: Tensor, v: Tensor, first_query: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Channels for the logit, and a first key that reads them: q · scale · key = z_h."""
        extra = 8 - self.head_dim % 8
        # far enough below any score to weigh nothing, and finite: -inf times the other keys' zeros would be NaN
        lowest = torch.finfo(q.dtype).min * min(self.scale, 1.0) / 4
        channel = (self.logit.to(q.dtype).clamp(min=lowest) / self.scale)[:, None, None].expand(*q.shape[:3], 1)
        q = F.pad(torch.cat([q, channel], 3), (0, extra - 1, int(first_query), 0))
        key = F.pad(k.new_ones(1), (self.head_dim, extra - 1)).expand(*k.shape[:2], 1, -1)
        k = torch.cat([key, F.pad(k, (0, extra))], 2)
        return q, k, F.pad(v, (0, extra, 1, 0))
