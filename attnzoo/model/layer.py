"""The attention layer: a projection, the backend, and what happens to its output. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnzoo import components
from attnzoo.contract import Attention, ScoreBias
from attnzoo.errors import RequestError
from attnzoo.kernels.recurrent import token_counts
from attnzoo.masks import Mask
from attnzoo.model.config import ModelConfig
from attnzoo.model.projection import LayerCache, Linear, Phases, Projection, RMSNorm


class AttentionLayer(nn.Module):
    """Self- or cross-attention over a width C.

    Args:
        attention: the backend; its H, G and D are the layer's head layout.
        cfg: the width and the layer's options (see `ModelConfig`).
    """

    def __init__(self, attention: Attention, cfg: ModelConfig) -> None:
        super().__init__()
        self.attention = attention
        self.projection: Projection = components.get("projection", cfg.projection or attention.projection)(
            attention, cfg
        )
        self.log_n = cfg.scale == "log_n"
        heads, d = attention.n_heads, attention.head_dim
        self.head_norm = RMSNorm(d, eps=cfg.norm_eps) if cfg.head_norm else None
        gates = {"none": 0, "headwise": heads, "elementwise": heads * d}[cfg.output_gate]
        self.gate = Linear(cfg.d_model, gates) if gates else None
        self.out = Linear(heads * d, cfg.d_model)

    def forward(
        self,
        x: Tensor,
        mask: Mask = Mask(),
        *,
        context: Tensor | None = None,
        phases: Phases = None,
        bias: ScoreBias | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Attend from x to itself, or to ``context``.

        Args:
            x: (B, Tq, C).
            mask: over Tk keys; Tk is Tq, the tokens so far when there is a cache, or the context's length.
            context: (B, Tk, C), for cross-attention; positions and the convolution do not apply there.
            phases, bias: from the position scheme.
            cache: extended by the tokens of x.

        Returns:
            (B, Tq, C).
        """
        if context is not None:
            if cache is not None:
                raise RequestError("cross-attention has no cache: pass the same context at every step")
            phases = bias = None
        remembered = None if cache is None else cache.conv
        q, k, v = self.projection(x, mask, phases, context=context, cache=cache)
        if self.log_n:
            q = q * self._log_counts(x, mask, context, cache).to(q.dtype)
        if cache is None:
            return self._merge(self.attention(q, k, v, mask, bias, x), x)
        decoder = self.projection.decoder(self.attention)
        q, k, v = cache.raised(q), cache.raised(k), cache.raised(v)
        try:
            out = decoder.extend(q, k, v, cache.attention, mask, bias, x)
        except RequestError:
            cache.conv = remembered  # tokens that were refused leave the cache as it was
            raise
        return self._merge(self.projection.finish(out), x)

    def new_cache(self, batch_size: int, max_tokens: int, device=None, dtype=None) -> LayerCache:
        """Decoding state for ``max_tokens`` tokens."""
        return self.projection.new_cache(self.attention, batch_size, max_tokens, device, dtype)

    def cache_bytes(self, batch_size: int, max_tokens: int, dtype: torch.dtype) -> int:
        """What `new_cache` takes, by formula."""
        return self.projection.cache_bytes(self.attention, batch_size, max_tokens, dtype)

    def flops(self, n_queries: int, n_keys: int) -> float:
        """Forward operations for one sequence: the projections, the gate and the attention."""
        weights = self.out.weight.numel() + (0 if self.gate is None else self.gate.weight.numel())
        return 2 * weights * n_queries + self.projection.flops(n_queries) + self.attention.flops(n_queries, n_keys)

    def _merge(self, out: Tensor, x: Tensor) -> Tensor:
        """(B, H, T, D) -> (B, T, C): norm and gate of each head, output projection."""
        out = (out if self.head_norm is None else self.head_norm(out)).transpose(1, 2)
        if self.gate is not None:
            out = out * self.gate(x).sigmoid().unflatten(-1, (out.shape[2], -1))
        return self.out(out.flatten(2))

    def _log_counts(self, x: Tensor, mask: Mask, context: Tensor | None, cache: LayerCache | None) -> Tensor:
        """Logarithm of how many tokens each query sees, itself included, of its document: (B or 1, 1, T, 1)."""
        if context is not None or not mask.causal or mask.prefix:
            raise RequestError(
                "scale=log_n counts the tokens up to each query: it needs a causal mask without a prefix"
            )
        n_tokens = x.shape[1]
        counts = token_counts(mask, n_tokens, n_tokens + (0 if cache is None else cache.length), x.device)
        return counts.clamp(min=1).double().log()[:, None, :, None]
