"""The attention layer: projections, head layout, positions; it calls the backend. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.contract import Attention, ScoreBias
from attnzoo.errors import RequestError
from attnzoo.masks import Mask
from attnzoo.positions import rotate

Phases = tuple[Tensor, Tensor] | None


@dataclass
class LayerCache:
    """What one layer keeps to decode: its attention's cache, and the last inputs of its convolution (B, width - 1, channels)."""

    attention: Any
    conv: Tensor | None

    @property
    def length(self) -> int:
        return self.attention.length

    @property
    def nbytes(self) -> int:
        return self.attention.nbytes + (0 if self.conv is None else self.conv.nbytes)


class RMSNorm(nn.RMSNorm):
    """Root-mean-square norm (arXiv:1910.07467); the gain takes the input's type, so that autocast keeps the fused kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class ShortConv(nn.Module):
    """A causal depthwise convolution over the last few tokens, the identity at first. Never reads another document."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, channels))  # row w multiplies the token w steps back

    @property
    def width(self) -> int:
        return self.weight.shape[0]

    def forward(self, x: Tensor, past: Tensor | None, documents: Tensor | None) -> Tensor:
        """x (B, T, channels), past (B, width - 1, channels) or None for zeros, documents (B, ≥ T) ending at x's last token."""
        n_tokens, reach = x.shape[1], self.width - 1
        padded = F.pad(x, (0, 0, reach, 0)) if past is None else torch.cat([past, x], 1)
        ids = None
        if documents is not None:  # ids of the tokens in ``padded``; before the sequence there is none
            ids = F.pad(documents + 1, (max(reach + n_tokens - documents.shape[1], 0), 0))[:, -reach - n_tokens :]
        out = x * self.weight[0]
        for back in range(1, self.width):
            earlier = padded[:, reach - back : reach - back + n_tokens]
            if ids is not None:
                same = ids[:, reach:] == ids[:, reach - back : reach - back + n_tokens]
                earlier = earlier * same[..., None]
            out = out + earlier * self.weight[back]
        return out


class AttentionLayer(nn.Module):
    """Self- or cross-attention over a width C: one fused projection, optional short convolution, QK-norm and positions.

    Args:
        attention: the backend; its H, G and D are the layer's head layout.
        d_model: C.
        qk_norm: RMSNorm over each head of q and k.
        short_conv: width of the causal convolution on q, k and v; 0 is none.
    """

    def __init__(
        self, attention: Attention, d_model: int, *, qk_norm: bool = True, short_conv: int = 0, norm_eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.attention = attention
        d = attention.head_dim
        self.sizes = (attention.n_heads * d, attention.n_kv_heads * d, attention.n_kv_heads * d)
        self.qkv = nn.Linear(d_model, sum(self.sizes), bias=False)
        self.conv = ShortConv(sum(self.sizes), short_conv) if short_conv else None
        self.q_norm = RMSNorm(d, eps=norm_eps) if qk_norm else nn.Identity()
        self.k_norm = RMSNorm(d, eps=norm_eps) if qk_norm else nn.Identity()
        self.out = nn.Linear(self.sizes[0], d_model, bias=False)

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
            q, k, v = self._heads(self._cross(x, context))
            return self._merge(self.attention(q, k, v, mask, None, x))
        q, k, v = self._heads(self._project(x, mask, cache).split(self.sizes, -1))
        q, k = rotate(q, phases), rotate(k, phases)
        if cache is None:
            return self._merge(self.attention(q, k, v, mask, bias, x))
        return self._merge(self.attention.extend(q, k, v, cache.attention, mask, bias, x))

    def new_cache(self, batch_size: int, max_tokens: int, device=None, dtype=None) -> LayerCache:
        """Decoding state for ``max_tokens`` tokens."""
        conv = None
        if self.conv is not None:
            conv = torch.zeros(batch_size, self.conv.width - 1, sum(self.sizes), device=device, dtype=dtype)
        return LayerCache(self.attention.new_cache(batch_size, max_tokens, device=device, dtype=dtype), conv)

    def flops(self, n_queries: int, n_keys: int) -> float:
        """Forward operations for one sequence: both projections, the convolution and the attention."""
        weights = self.qkv.weight.numel() + self.out.weight.numel()
        weights += 0 if self.conv is None else self.conv.weight.numel()
        return 2 * weights * n_queries + self.attention.flops(n_queries, n_keys)

    def _project(self, x: Tensor, mask: Mask, cache: LayerCache | None) -> Tensor:
        """(B, T, C) -> q, k and v side by side (B, T, (H + 2G)·D)."""
        qkv = self.qkv(x)
        if self.conv is None:
            return qkv
        if mask.key_padding is not None:  # padding must look like the nothing before a sequence
            qkv = qkv * mask.key_padding[:, -x.shape[1] :, None]
        past = None if cache is None else cache.conv
        if cache is not None and past is not None:
            cache.conv = torch.cat([past, qkv], 1)[:, -past.shape[1] :] if past.shape[1] else past
        return self.conv(qkv, past, mask.documents)

    def _cross(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        to_q, to_kv = self.qkv.weight.split([self.sizes[0], 2 * self.sizes[1]])
        k, v = F.linear(context, to_kv).chunk(2, -1)
        return F.linear(x, to_q), k, v

    def _heads(self, qkv: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Three of (B, T, heads·D) -> (B, H, T, D) and twice (B, G, T, D), normalised."""
        q, k, v = (t.unflatten(-1, (-1, self.attention.head_dim)).transpose(1, 2) for t in qkv)
        return self.q_norm(q), self.k_norm(k), v

    def _merge(self, out: Tensor) -> Tensor:
        return self.out(out.transpose(1, 2).flatten(2))
