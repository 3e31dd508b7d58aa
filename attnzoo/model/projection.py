"""What turns a layer's input into q, k and v, and what of it decoding keeps. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo import components
from attnzoo.components import Component
from attnzoo.contract import Attention
from attnzoo.kernels.linear import linear
from attnzoo.kernels.norm import rms_norm
from attnzoo.masks import Mask
from attnzoo.model.config import ModelConfig
from attnzoo.positions import Positions

Phases = tuple[Tensor, Tensor] | None
Heads = tuple[Tensor, Tensor, Tensor]


@dataclass
class LayerCache:
    """What one layer keeps to decode, in one ``dtype``: its attention's cache, and the last inputs of its convolution
    (B, width - 1, channels)."""

    attention: Any
    conv: Tensor | None
    dtype: torch.dtype

    @property
    def length(self) -> int:
        return self.attention.length

    @property
    def nbytes(self) -> int:
        return self.attention.nbytes + (0 if self.conv is None else self.conv.nbytes)

    def raised(self, t: Tensor) -> Tensor:
        """In the cache's dtype where that holds every number of t's, as float32 does of what autocast makes; else as it is."""
        if t.dtype == self.dtype or torch.promote_types(t.dtype, self.dtype) != self.dtype:
            return t
        return t.to(self.dtype)


class RMSNorm(nn.RMSNorm):
    """Root-mean-square norm (arXiv:1910.07467); the gain takes the input's type, so that autocast keeps the fused kernel."""

    eps: float

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class Linear(nn.Linear):
    """A matrix without bias, that takes few rows by the fastest of its forms."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)


class ShortConv(nn.Module):
    """A causal depthwise convolution over the last few tokens, the identity at first. Never reads another document.

    Sums are in the wider dtype of input and weight, as under autocast, and leave in the input's.
    """

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
        return out if out.dtype == x.dtype else out.to(x.dtype)


class Projection(nn.Module, Component):
    """One matrix of x, the short convolution behind it, and what a subclass makes of its parts.

    A subclass takes (attention, cfg), gives the widths of the parts, q's first, and `heads`. One that keeps something else than
    keys and values also gives `cached_heads` and `finish`, and the `decoder` and its cache that belong to them. ``options``: its
    own, from ``model.projection_options``.
    """

    kind: ClassVar[str] = "projection"

    def __init__(self, cfg: ModelConfig, sizes: Sequence[int]) -> None:
        super().__init__()
        self.options = components.parse("projection", self.name, cfg.projection_options)
        self.sizes = tuple(sizes)
        self.qkv = Linear(cfg.d_model, sum(sizes))
        self.conv = ShortConv(sum(sizes), cfg.short_conv) if cfg.short_conv else None

    @classmethod
    def kv_heads(cls, model: ModelConfig, attention: type[Attention]) -> int:
        """G: as asked, or the backend's own."""
        return attention.default_kv_heads(model.n_heads) if model.n_kv_heads is None else model.n_kv_heads

    @classmethod
    def reasons(cls, model: ModelConfig, attention: type[Attention], scheme: type[Positions]) -> list[str]:
        """Why it cannot stand in front of this backend with this position scheme, or not in these sizes."""
        return []

    def heads(self, parts: Sequence[Tensor], phases: Phases) -> Heads:
        """Parts (B, T, size) -> q (B, H, T, D), k (B, G, T, D), v (B, G, T, Dv), normalised and turned by the phases."""
        raise NotImplementedError

    def cached_heads(self, parts: Sequence[Tensor], phases: Phases) -> Heads:
        """The same in the layout of the `decoder`."""
        return self.heads(parts, phases)

    def finish(self, out: Tensor) -> Tensor:
        """The decoder's output -> (B, H, T, Dv)."""
        return out

    def decoder(self, attention: Attention) -> Attention:
        """What attends from new tokens to the cache."""
        return attention

    def attention_cache(self, attention: Attention, batch_size: int, max_tokens: int, device, dtype) -> Any:
        """The decoder's cache."""
        return attention.new_cache(batch_size, max_tokens, device=device, dtype=dtype)

    def attention_cache_bytes(self, attention: Attention, batch_size: int, max_tokens: int, dtype: torch.dtype) -> int:
        """What `attention_cache` takes, by formula."""
        return attention.cache_bytes(batch_size, max_tokens, dtype)

    # -- what they share ----------------------------------------------------------------------------------------------

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        phases: Phases,
        *,
        context: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Heads:
        """q, k and v of x (B, T, C); k and v of the context, where there is one; in the decoder's layout with a cache."""
        if context is not None:
            return self.heads(self._cross(x, context), phases)
        parts = self._convolved(self.qkv(x), mask, cache).split_with_sizes(self.sizes, -1)
        return self.heads(parts, phases) if cache is None else self.cached_heads(parts, phases)

    def new_cache(self, attention: Attention, batch_size: int, max_tokens: int, device=None, dtype=None) -> LayerCache:
        """Decoding state for ``max_tokens`` tokens."""
        conv, dtype = None, dtype or torch.get_default_dtype()
        if self.conv is not None:
            conv = torch.zeros(batch_size, self.conv.width - 1, sum(self.sizes), device=device, dtype=dtype)
        return LayerCache(self.attention_cache(attention, batch_size, max_tokens, device, dtype), conv, dtype)

    def cache_bytes(self, attention: Attention, batch_size: int, max_tokens: int, dtype: torch.dtype) -> int:
        """What `new_cache` takes, by formula."""
        conv = 0 if self.conv is None else batch_size * (self.conv.width - 1) * sum(self.sizes) * dtype.itemsize
        return conv + self.attention_cache_bytes(attention, batch_size, max_tokens, dtype)

    def flops(self, n_tokens: int) -> float:
        """Forward operations of all matrices and the convolution."""
        parts = [m for m in self.modules() if isinstance(m, (nn.Linear, ShortConv))]
        return 2.0 * n_tokens * sum(part.weight.numel() for part in parts)

    def _convolved(self, parts: Tensor, mask: Mask, cache: LayerCache | None) -> Tensor:
        if self.conv is None:
            return parts
        if mask.key_padding is not None:  # padding must look like the nothing before a sequence
            parts = parts * mask.key_padding[:, -parts.shape[1] :, None]
        past = None if cache is None else cache.conv
        if cache is not None and past is not None:
            cache.conv = (
                torch.cat([past, parts if parts.dtype == past.dtype else parts.to(past.dtype)], 1)[:, -past.shape[1] :]
                if past.shape[1]
                else past
            )
        return self.conv(parts, past, mask.documents)

    def _cross(self, x: Tensor, context: Tensor) -> tuple[Tensor, ...]:
        of_x, of_context = self.qkv.weight.split([self.sizes[0], sum(self.sizes[1:])])
        return F.linear(x, of_x), *F.linear(context, of_context).split(self.sizes[1:], -1)
