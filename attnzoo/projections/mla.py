"""Keys and values from a latent. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnzoo.components import register
from attnzoo.contract import Attention
from attnzoo.model.config import ModelConfig, head_dim_of
from attnzoo.model.projection import Heads, Linear, Phases, Projection, RMSNorm
from attnzoo.positions import Positions, rotate


@register("mla")
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

    source = "arXiv:2405.04434"

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

    @classmethod
    def kv_heads(cls, model: ModelConfig, attention: type[Attention]) -> int:
        return model.n_heads  # keys and values of every head come from its latent

    @classmethod
    def reasons(cls, model: ModelConfig, attention: type[Attention], scheme: type[Positions]) -> list[str]:
        head_dim, can, why = head_dim_of(model), attention.capabilities, []
        latent, turned = latent_sizes(model, head_dim)
        if not can.products:
            why.append(
                f"{attention.name} does not see q and k through q·k of whole heads alone: mla decodes with both in the latent "
                "space, where no other product of theirs is left"
            )
        for method in ("new_cache", "cache_bytes"):
            if "value_dim" not in inspect.signature(getattr(attention, method)).parameters:
                why.append(
                    f"{attention.name}'s {method} takes no value_dim; mla's is 0: values that are the keys, kept once"
                )
        if not can.grouped_heads:
            why.append(f"{attention.name} cannot decode mla's latent, which is one key/value head")
        if model.n_kv_heads not in (None, model.n_heads):
            why.append(f"model.n_kv_heads={model.n_kv_heads}: mla makes keys and values of every head from its latent")
        if turned and (turned % 2 or head_dim % turned or turned == head_dim):
            why.append(f"model.rope_dim={turned}: must be even and a true divisor of the head dim {head_dim}")
        if not turned and scheme.turns:
            why.append(f"model.rope_dim=0 leaves mla no channels that {scheme.name} could turn")
        return why if latent else [*why, f"model.latent_dim={latent}: must be at least 1"]

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


def latent_sizes(cfg: ModelConfig, head_dim: int) -> tuple[int, int]:
    """r and Dr of mla: as given, or 2·D and the largest even divisor up to D/2."""
    even = (n for n in range(head_dim // 2, 1, -1) if n % 2 == 0 and head_dim % n == 0)
    return (
        2 * head_dim if cfg.latent_dim is None else cfg.latent_dim,
        next(even, 0) if cfg.rope_dim is None else cfg.rope_dim,
    )
