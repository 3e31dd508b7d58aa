"""What turns a layer's input into q, k and v, and what of it decoding keeps. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.contract import Attention
from attnzoo.kernels.linear import linear
from attnzoo.kernels.norm import rms_norm
from attnzoo.masks import Mask
from attnzoo.model.config import ModelConfig
from attnzoo.positions import rotate

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


class Projection(nn.Module):
    """One matrix of x, the short convolution behind it, and what a subclass makes of its parts.

    A subclass gives the widths of the parts, q's first, and `heads`. One that keeps something else than keys and values
    also gives `cached_heads` and `finish`, and the `decoder` and its cache that belong to them.
    """

    def __init__(self, cfg: ModelConfig, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.qkv = Linear(cfg.d_model, sum(sizes))
        self.conv = ShortConv(sum(sizes), cfg.short_conv) if cfg.short_conv else None

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


class QKV(Projection):
    """q, k and v of every head straight from x (arXiv:1706.03762), QK-norm on each head, positions on q and k."""

    def __init__(self, attention: Attention, cfg: ModelConfig) -> None:
        d = attention.head_dim
        super().__init__(cfg, (attention.n_heads * d, attention.n_kv_heads * d, attention.n_kv_heads * d))
        self.head_dim = d
        self.q_norm = RMSNorm(d, eps=cfg.norm_eps) if cfg.qk_norm else None
        self.k_norm = RMSNorm(d, eps=cfg.norm_eps) if cfg.qk_norm else None

    def heads(self, parts: Sequence[Tensor], phases: Phases) -> Heads:
        # the axes are swapped last: until then a token's heads lie side by side, which a CPU walks four times as fast
        q, k, v = [t.view(*t.shape[:2], -1, self.head_dim) for t in parts]
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if phases is not None:
            beside = phases[0].transpose(1, 2), phases[1].transpose(1, 2)
            q, k = rotate(q, beside), rotate(k, beside)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


class LatentKV(Projection):
    """Multi-head latent attention (MLA): keys and values of all heads from one latent a token, which alone is cached.

    [q | c | k_r] = x W, c = RMSNorm(c) of r channels, k_r of Dr for all heads together. Head h: k_h = [W_h c | rope(k_r)],
    v_h = U_h c, q_h = [q_n | rope(q_r)], D = Dn + Dr. Decoding carries queries into the latent space instead of keys and
    values out of it: q_h·k_j = [W_hᵀ q_n | rope(q_r)]·[c_j | rope(k_r,j)], one head of width r + Dr that is key and value
    at once, so that fused kernels take it; U_h acts on the first r channels of what comes out.
    Cache: (B, 1, T, r + Dr), whatever H. Any backend runs on it whose weights depend on q·k alone.
    Source: arXiv:2405.04434. Departures: Dr is a part of D, and values have D channels too, so that fused kernels take the
    parallel pass; queries have no latent of their own (as in DeepSeek-V2-Lite); ``qk_norm`` also normalises each head of q
    and k_r, and without it c stays as it is. A short convolution acts on q, c and k_r.
    """

    def __init__(self, attention: Attention, cfg: ModelConfig) -> None:
        heads, d = attention.n_heads, attention.head_dim
        self.latent, self.turned = latent_sizes(cfg, d)
        super().__init__(cfg, (heads * d, self.latent, self.turned))
        self.n_heads, self.head_dim = heads, d
        self._decoders = [attention.with_layout(1, self.latent + self.turned)]  # in a list: no module of its own
        self.expand = Linear(self.latent, heads * (2 * d - self.turned))
        self.q_norm = RMSNorm(d, eps=cfg.norm_eps) if cfg.qk_norm else nn.Identity()
        self.latent_norm = RMSNorm(self.latent, eps=cfg.norm_eps) if cfg.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(self.turned, eps=cfg.norm_eps) if cfg.qk_norm and self.turned else nn.Identity()

    @property
    def plain(self) -> int:
        """Dn: channels of a head without positions."""
        return self.head_dim - self.turned

    def heads(self, parts: Sequence[Tensor], phases: Phases) -> Heads:
        q, latent, key = self._normalised(parts, phases)
        keys, values = (
            self.expand(latent).unflatten(-1, (self.n_heads, -1)).transpose(1, 2).split([self.plain, self.head_dim], -1)
        )
        return q, torch.cat([keys, key[:, None].expand(-1, self.n_heads, -1, -1)], -1), values

    def cached_heads(self, parts: Sequence[Tensor], phases: Phases) -> Heads:
        q, latent, key = self._normalised(parts, phases)
        plain, turned = q.split([self.plain, self.turned], -1)
        to_keys, _ = self._by_head()
        held = torch.cat([latent, key], -1)[:, None]
        return torch.cat([plain @ to_keys.to(q.dtype), turned], -1), held, held

    def finish(self, out: Tensor) -> Tensor:
        return out[..., : self.latent] @ self._by_head()[1].mT.to(out.dtype)

    def decoder(self, attention: Attention) -> Attention:
        if not torch.compiler.is_compiling():  # which cannot trace a copy: it takes the one that its cache was made for
            vars(self._decoders[0]).update(vars(attention.with_layout(1, self.latent + self.turned)))
        return self._decoders[0]

    def attention_cache(self, attention: Attention, batch_size: int, max_tokens: int, device, dtype) -> Any:
        return self.decoder(attention).new_cache(batch_size, max_tokens, device=device, dtype=dtype, value_dim=0)

    def attention_cache_bytes(self, attention: Attention, batch_size: int, max_tokens: int, dtype: torch.dtype) -> int:
        return self.decoder(attention).cache_bytes(batch_size, max_tokens, dtype, value_dim=0)

    def _normalised(self, parts: Sequence[Tensor], phases: Phases) -> Heads:
        """q (B, H, T, D), the latent (B, T, r) and the key of all heads (B, T, Dr), turned."""
        q = self.q_norm(parts[0].unflatten(-1, (self.n_heads, -1)).transpose(1, 2))
        latent, key = self.latent_norm(parts[1]), self.k_norm(parts[2])
        if phases is None:
            return q, latent, key
        # D is a multiple of Dr: every (D/Dr)-th wavelength of a whole head is that of a head of Dr
        every = self.head_dim // self.turned
        phases = (phases[0][..., ::every], phases[1][..., ::every])
        plain, turned = q.split([self.plain, self.turned], -1)
        return torch.cat([plain, rotate(turned, phases)], -1), latent, rotate(key[:, None], phases)[:, 0]

    def _by_head(self) -> tuple[Tensor, Tensor]:
        """W (H, Dn, r) and U (H, D, r)."""
        return self.expand.weight.unflatten(0, (self.n_heads, -1)).split([self.plain, self.head_dim], 1)


PROJECTIONS: dict[str, type[QKV] | type[LatentKV]] = {"qkv": QKV, "mla": LatentKV}


def latent_sizes(cfg: ModelConfig, head_dim: int) -> tuple[int, int]:
    """r and Dr of mla: as given, or 2·D and the largest even divisor up to D/2."""
    even = (n for n in range(head_dim // 2, 1, -1) if n % 2 == 0 and head_dim % n == 0)
    return (
        2 * head_dim if cfg.latent_dim is None else cfg.latent_dim,
        next(even, 0) if cfg.rope_dim is None else cfg.rope_dim,
    )
