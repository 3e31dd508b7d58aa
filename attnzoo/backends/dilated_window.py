"""Softmax attention over every r-th key back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.contract import Capabilities, Options, ScoreBias, softmax_flops
from attnzoo.errors import RequestError
from attnzoo.kernels.library import WithLibraries
from attnzoo.kernels.ring import RingCache, attend_ring
from attnzoo.kernels.window import attend_window
from attnzoo.masks import Mask
from attnzoo.registry import register


@dataclass(frozen=True)
class DilatedOptions(Options):
    """window: W, keys a query sees, its own included; dilation: r, the distance from each to the next."""

    window: int = 32
    dilation: int = 4

    def __post_init__(self) -> None:
        faults = [f"{n}={getattr(self, n)}: at least 1" for n in ("window", "dilation") if getattr(self, n) < 1]
        if faults:
            raise RequestError("dilated_window cannot take these options", faults)


@register("dilated_window")
class DilatedWindow(WithLibraries):
    """Softmax attention over W keys, r apart: j ≤ i, i - j < W·r and i - j a multiple of r.

    Cost: time and memory O(T·W): tokens whose positions are equal mod r form r sequences, each with a plain window.
    State: a ring of W·r keys and values, 2·W·r·G·D, whatever T; a step reads W of them.
    Gives up every look at a distance that is no multiple of r: tokens of different residues never meet in a layer of
    this kind alone. Departure: every head has the same r (the paper also mixes dilations over heads and layers,
    and has global tokens).
    Use: for a longer reach at a window's cost, beside layers with plain windows.
    """

    Options = DilatedOptions
    source = "arXiv:2004.05150"
    capabilities = Capabilities(time=1.0, memory=1.0, state=0.0, products=True)
    kernels = ("auto", "blocks", "flex")
    options: DilatedOptions

    def pattern(self, i: Tensor, j: Tensor) -> Tensor:
        w, r = self.options.window, self.options.dilation
        return (j <= i) & (i - j < w * r) & ((i - j) % r == 0)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        extra = q.shape[2] - k.shape[2]
        if extra > 0:  # queries before the first key see nothing
            return F.pad(self.attend(q[:, :, extra:], k, v, mask, bias, x), (0, 0, extra, 0))
        return self._attend_from(q, k, v, mask, bias, 0)

    def _attend_from(self, q, k, v, mask: Mask, bias: ScoreBias | None, first: int) -> Tensor:
        """The keys lie at positions from ``first`` on, one after another."""
        if self.options.kernel == "flex":
            at = torch.arange(first, first + k.shape[2], device=q.device) if first else None
            return self.by_flex(q, k, v, mask, bias, key_positions=at)[0]
        n_queries, n_keys, r = q.shape[2], k.shape[2], self.options.dilation
        how: dict[str, Any] = {"window": self.options.window, "scale": self.scale, "dropout": self.dropout_now}
        lead, tail = (n_keys - n_queries) % r, -n_keys % r
        if not mask.fields and bias is None:  # all residues are alike: they become batch rows
            q, k, v = (_fold(t, r, before, tail) for t, before in ((q, lead), (k, 0), (v, 0)))
            out, kernel = attend_window(q, k, v, mask, None, **how)
            out = out.unflatten(0, (-1, r)).permute(0, 2, 3, 1, 4).flatten(2, 3)[:, :, lead : lead + n_queries]
        else:
            out = v.new_empty(*q.shape[:3], v.shape[3])
            for residue in range(min(r, n_keys)):
                rows = slice((residue - lead) % r, None, r)
                if rows.start < n_queries:
                    at = torch.arange(first + residue, first + n_keys, r, device=q.device)
                    keys, values = k[:, :, residue::r], v[:, :, residue::r]
                    out[:, :, rows], kernel = attend_window(
                        q[:, :, rows], keys, values, mask, bias, key_positions=at, spacing=r, **how
                    )
        self.ran(kernel)
        return out

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None) -> RingCache:
        slots = super().new_cache(batch_size, self._slots(max_tokens), device, dtype, value_dim)
        return RingCache(slots.keys, slots.values, max_tokens)

    def cache_bytes(self, batch_size, max_tokens, dtype, value_dim=None) -> int:
        return super().cache_bytes(batch_size, self._slots(max_tokens), dtype, value_dim)

    def _slots(self, max_tokens: int) -> int:
        return min(self.options.window * self.options.dilation, max_tokens)

    def attend_cached(self, q, k, v, cache: RingCache, mask: Mask, bias, x) -> Tensor:
        if q.shape[2] == 1:  # W·r slots: position p and slot p mod W·r have the same residue
            read = slice(cache.length % self.options.dilation, None, self.options.dilation)
            cache.store(k, v)
            out, kernel = attend_ring(
                q, cache, mask, bias, self.pattern, scale=self.scale, dropout=self.dropout_now, read=read
            )
            self.ran(kernel)
            return out
        keys, values, positions = cache.ordered()
        first = cache.length - len(positions)
        out = self._attend_from(q, torch.cat([keys, k], 2), torch.cat([values, v], 2), mask, bias, first)
        cache.store(k, v)
        return out

    def flops(self, n_queries: int, n_keys: int) -> float:
        rows = torch.arange(n_keys - min(n_queries, n_keys), n_keys)
        return softmax_flops(self, (rows // self.options.dilation + 1).clamp(max=self.options.window).sum().item())


def _fold(t: Tensor, r: int, before: int, after: int) -> Tensor:
    """(B, heads, T, D) -> (B·r, heads, T/r, D): tokens of one residue mod r in a row, padded to whole runs of r."""
    padded = F.pad(t, (0, 0, before, after)) if before or after else t
    return padded.unflatten(2, (-1, r)).permute(0, 3, 1, 2, 4).flatten(0, 1)
