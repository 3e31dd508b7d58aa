"""Softmax with a data-dependent forget gate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.cache import KVCache
from attnzoo.contract import Attention, Capabilities, Request, ScoreBias, masked_softmax
from attnzoo.errors import RequestError
from attnzoo.kernels.tiles import TileOptions, attend_tiles
from attnzoo.masks import FIELDS, Mask
from attnzoo.registry import register

LARGEST = 80.0  # beyond, exp(b) leaves float32


@dataclass(frozen=True)
class ForgettingOptions(TileOptions):
    """bias: b of every head at first; f starts at σ(b), which a larger b brings nearer to 1."""

    bias: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not abs(self.bias) <= LARGEST:
            raise RequestError(f"bias={self.bias}: must be between -{LARGEST:g} and {LARGEST:g}")


class ForgetCache(KVCache):
    """Keys and values, and the logarithm of each token's forget gate (B, H, T)."""

    def __init__(self, keys: Tensor, values: Tensor, log_forget: Tensor) -> None:
        super().__init__(keys, values)
        self.log_forget = log_forget

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.log_forget.nbytes


@register("forgetting")
class Forgetting(Attention):
    """softmax(Q K^T · scale + D) V with D_ij = Σ_{j < l ≤ i} log f_l and a gate f_l = σ(w_h · x_l + b_h) for each head h.

    What lies between a key and the query pushes its score down. Padding forgets nothing; documents start anew.
    Cost: time O(T²), memory O(T·tile), no T² matrix. State: 2·T·G·D, and log f in float32, T·H. Sums of log f are taken
    in float64 and rounded once they are relative to a query nearby. Needs a causal mask without a prefix.
    Departures: QK-norm, on by default, is the paper's larger block's ("Pro") alone; that one's output gate and norm are
    ``model.output_gate`` and ``model.head_norm``, and it also mixes keys and values with those of the token before.
    Use: for softmax attention with a learned recency, also in place of positions.
    """

    Options = ForgettingOptions
    source = "arXiv:2503.02130"
    capabilities = Capabilities(
        masks=FIELDS - {"bidirectional", "prefix"},
        cross=False,
        needs_x=True,
        positions="none",
        memory=1.0,
        products=True,
    )
    options: ForgettingOptions

    def __init__(self, *, d_model: int | None = None, **sizes) -> None:
        super().__init__(d_model=d_model, **sizes)
        if d_model is None:
            raise RequestError("forgetting has a gate that reads the layer's input: it needs d_model")
        self.gate = nn.Linear(d_model, self.n_heads)
        nn.init.normal_(self.gate.weight, std=0.02)
        nn.init.constant_(self.gate.bias, self.options.bias)

    @classmethod
    def initial_memory(cls, options) -> float:
        return 1 / math.log1p(math.exp(-options.bias))

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        if not request.contiguous_documents:
            yield "forgetting adds up gates from token to token: documents must be contiguous runs of one id"

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        real = visible.diagonal(dim1=-2, dim2=-1)  # a token that does not see itself is padding
        total = (self._log_forget(x) * real).cumsum(-1)
        scores = q @ k.mT * self.scale + total[..., :, None] - total[..., None, :]
        return masked_softmax(scores if bias is None else scores + bias, visible)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        return self._attend(q, k, v, mask, bias, self._log_forget(x))

    def _log_forget(self, x: Tensor | None) -> Tensor:
        """log f, (B, H, T), in float32 or float64 also under autocast."""
        assert x is not None
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        with torch.autocast(x.device.type, enabled=False):
            return F.logsigmoid(F.linear(x.to(wide), self.gate.weight.to(wide), self.gate.bias.to(wide))).mT

    def _attend(self, q, k, v, mask: Mask, bias: ScoreBias | None, log_forget: Tensor) -> Tensor:
        if mask.key_padding is not None:
            log_forget = log_forget * mask.key_padding[:, None]
        total = running_sums(log_forget.double(), mask.documents)
        offset = k.shape[2] - q.shape[2]

        def decayed(scores: Tensor, start: int) -> Tensor:
            first, end = offset + start, offset + start + scores.shape[2]
            here = total[..., first : first + 1].detach()  # drops out of the difference
            if mask.documents is not None:  # one that begins inside the tile is counted from its own start
                here = here * (mask.documents == mask.documents[:, first : first + 1])[:, None]
            near = (total - here).to(scores.dtype)
            return scores + (near[..., first:end, None] - near[..., None, : scores.shape[3]])

        self.ran("forgetting/tiles")
        return attend_tiles(
            q, k, v, mask, bias, scale=self.scale, tile=self.options.tile, dropout=self.dropout_now, change=decayed
        )

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None) -> ForgetCache:
        plain = super().new_cache(batch_size, max_tokens, device, dtype, value_dim)
        wide = torch.float64 if plain.keys.dtype == torch.float64 else torch.float32
        log_forget = torch.zeros(batch_size, self.n_heads, max_tokens, device=device, dtype=wide)
        return ForgetCache(plain.keys, plain.values, log_forget)

    def cache_bytes(self, batch_size, max_tokens, dtype, value_dim=None) -> int:
        gates = batch_size * self.n_heads * max_tokens * (8 if dtype == torch.float64 else 4)
        return super().cache_bytes(batch_size, max_tokens, dtype, value_dim) + gates

    def attend_cached(self, q, k, v, cache: ForgetCache, mask: Mask, bias, x) -> Tensor:
        start = cache.length
        keys, values = cache.append(k, v)
        cache.log_forget[:, :, start : cache.length] = self._log_forget(x)
        return self._attend(q, keys, values, mask, bias, cache.log_forget[:, :, : cache.length])

    def flops(self, n_queries: int, n_keys: int) -> float:
        return super().flops(n_queries, n_keys) + 2.0 * n_queries * self.gate.weight.numel()


def running_sums(t: Tensor, documents: Tensor | None) -> Tensor:
    """Sums of t (B, H, T) up to each token, within its document (B or 1, T; contiguous runs): another one leaves no trace."""
    if documents is None:
        return t.cumsum(-1)
    step = 1
    while step < t.shape[-1]:  # each sum takes in the one that ends where it begins
        same = documents[:, None, step:] == documents[:, None, :-step]
        t = torch.cat([t[..., :step], t[..., step:] + t[..., :-step] * same], -1)
        step *= 2
    return t
