"""Linear attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnzoo.contract import Attention, Capabilities, Options, Request, ScoreBias
from attnzoo.errors import RequestError
from attnzoo.kernels.features import elu_plus_one
from attnzoo.kernels.linear import StateCache, chunked, full, step_state
from attnzoo.masks import Mask
from attnzoo.registry import register


@dataclass(frozen=True)
class LinearOptions(Options):
    """chunk: tokens computed together; changes the speed, not the result beyond rounding."""

    chunk: int = 128

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise RequestError(f"chunk={self.chunk}: a chunk has at least 1 token")


@register("linear")
class Linear(Attention):
    """Linear attention with the feature map φ = elu + 1.

    O_i = φ(q_i) Σ_{j≤i} φ(k_j) v_j^T / φ(q_i) Σ_{j≤i} φ(k_j); the keys are not scaled. Not an approximation of softmax.
    Cost: time O(T·D·Dv), memory O(T). State: G·D·(Dv+1) float32, whatever T. Computed in chunks, states and sums in float32.
    Departure: where every φ(k) in sight underflows float32 (keys below about -100) the output is 0.
    Use: for a constant state and linear time, where recalling single far tokens matters little.
    """

    Options = LinearOptions
    source = "arXiv:2006.16236"
    capabilities = Capabilities(
        masks=frozenset({"bidirectional", "key_padding", "documents"}),
        bias=False,
        dropout=False,
        time=1.0,
        memory=1.0,
        state=0.0,
    )
    options: LinearOptions

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        if not request.contiguous_documents:
            yield "linear carries a state from token to token: documents must be contiguous runs of one id"
        if {"documents", "bidirectional"} <= request.mask_fields:
            yield "linear takes documents under a causal mask only"

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        similarity = (elu_plus_one(q) @ elu_plus_one(k).mT).masked_fill(~visible, 0.0)
        total = similarity.sum(-1, keepdim=True)
        return similarity / total.masked_fill(total == 0, 1.0)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        queries, keys, values = self._features(q, k, v)
        if mask.key_padding is not None:
            keys = keys * mask.key_padding[:, None, :, None]
        if mask.causal:
            out = chunked(queries, keys, values, chunk=self.options.chunk, documents=mask.documents)
        else:
            out = full(queries, keys, values)
        self.ran("linear/chunked")
        return _normalise(out, q.dtype)

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None) -> StateCache:
        shape = (batch_size, self.n_kv_heads, self.head_dim, (value_dim or self.head_dim) + 1)
        state = torch.float64 if dtype == torch.float64 else torch.float32
        return StateCache(torch.zeros(shape, device=device, dtype=state), max_tokens)

    def cache_bytes(self, batch_size: int, max_tokens: int, dtype: torch.dtype) -> int:
        itemsize = 8 if dtype == torch.float64 else 4
        return batch_size * self.n_kv_heads * self.head_dim * (self.head_dim + 1) * itemsize

    def attend_cached(self, q, k, v, cache: StateCache, mask: Mask, bias, x) -> Tensor:
        queries, keys, values = self._features(q, k, v)
        start, end = cache.length, cache.length + k.shape[2]
        if mask.key_padding is not None:
            keys = keys * mask.key_padding[:, None, start:, None]
        documents = mask.documents
        state = cache.state
        if documents is not None and start:  # the carried state belongs to the last token's document
            same = documents[:, start] == documents[:, start - 1]
            state = state * same[:, None, None, None]
        new = None if documents is None else documents[:, start:]
        out = chunked(queries, keys, values, chunk=self.options.chunk, documents=new, state=state)
        cache.state = step_state(state, keys, values, new)
        cache.length = end
        self.ran("linear/recurrent" if q.shape[2] == 1 else "linear/chunked")
        return _normalise(out, q.dtype)

    def flops(self, n_queries: int, n_keys: int) -> float:
        c, d = self.options.chunk, self.head_dim
        inside = n_keys * (c + 1) / 2 * 2 * (2 * d + 1)
        states = 2 * n_keys * d * (d + 1) * 2
        return self.n_heads * (inside + states)

    def _features(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """φ(q) (B,H,Tq,D), φ(k) (B,G,Tk,D) and v with a column of ones (B,G,Tk,Dv+1), in float32 or float64."""
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        queries, keys, values = elu_plus_one(q.to(wide)), elu_plus_one(k.to(wide)), v.to(wide)
        # a common factor of a query's features cancels in the ratio; without it both sums may underflow
        queries = queries / queries.amax(-1, keepdim=True).detach()
        return queries, keys, torch.cat([values, torch.ones_like(values[..., :1])], dim=-1)


def _normalise(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """(…, Dv+1) sums of v and of ones -> (…, Dv); 0 where nothing was summed."""
    values, total = sums.split([sums.shape[-1] - 1, 1], -1)
    return (values / total.masked_fill(total == 0, 1.0)).to(dtype)
