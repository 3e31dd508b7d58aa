"""A rule: its sizes, what it computes, its definition and its cost. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

import math
from dataclasses import asdict

import torch
from torch import Tensor, nn

from attnzoo.bias import ScoreBias
from attnzoo.capabilities import Options as AnyOptions
from attnzoo.declared import Declared
from attnzoo.masks import Mask
from attnzoo.softmax import causal_pairs, masked_softmax, softmax_flops


class Rule(Declared, nn.Module):
    """What a subclass of `attnzoo.Attention` writes, and what helps it to; the sizes are explained there."""

    def __init__(
        self,
        *,
        n_heads: int,
        n_kv_heads: int | None = None,
        head_dim: int,
        d_model: int | None = None,
        dropout: float = 0.0,
        scale: float | None = None,
        options: AnyOptions | None = None,
    ) -> None:
        super().__init__()
        self.n_heads, self.head_dim, self.d_model = n_heads, head_dim, d_model
        self.n_kv_heads = n_kv_heads if n_kv_heads is not None else self.default_kv_heads(n_heads)
        self.dropout, self.scale = dropout, scale if scale is not None else 1 / math.sqrt(head_dim)
        self.options = options if options is not None else self.Options()
        self.kernel = "not run yet"
        # of `_check_request`: cheaper to look up than a Request, once a layer and token
        self._cleared: set[tuple] = set()

    # -- what a subclass writes ---------------------------------------------------------------------------------------

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        """The rule, computed: q (B,H,Tq,D), k (B,G,Tk,D), v (B,G,Tk,Dv) -> (B,H,Tq,Dv). The request has been checked.

        A class that only defines `weights` gets them written out, O(Tq·Tk): enough to try a rule.
        """
        self.ran("written out")
        wide = torch.float32 if q.dtype.itemsize == 2 else q.dtype
        return self._written_out(q, k, v, mask, bias, x, wide)[0].to(q.dtype)

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        """The definition: the matrix (B, H, Tq, Tk) that multiplies the values. Softmax over the visible scores by default.

        Args:
            q, k: float64, k already repeated to H heads.
            visible: bool, broadcastable to (B, H, Tq, Tk): the mask with this backend's own pattern.
            bias: float64 (H, Tq, Tk) or None.
        """
        scores = q @ k.mT * self.scale
        if bias is not None:
            scores = scores + bias
        return masked_softmax(scores, visible)

    def pattern(self, i: Tensor, j: Tensor) -> Tensor | None:
        """What this backend adds to the mask: visibility of key positions j to query positions i, of one broadcast shape S;
        bool S, or (H, *S), or None for everything."""
        return None

    def flops(self, n_queries: int, n_keys: int) -> float:
        """Forward floating-point operations of one sequence under a causal mask, two per multiply-add, projections excluded."""
        return softmax_flops(self, causal_pairs(n_queries, n_keys))

    def decode_flops(self, context: int) -> float:
        """The same for one token after ``context`` tokens in the cache; a rule that keeps a state reads only that."""
        return self.flops(1, context + 1)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _written_out(self, q, k, v, mask: Mask, bias, x, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """`weights` of the mask and the own pattern, times the values, in ``dtype``: output and weights."""
        n_queries, n_keys, device = q.shape[2], k.shape[2], q.device
        q, k, v = q.to(dtype), self.repeat_kv(k.to(dtype)), self.repeat_kv(v.to(dtype))
        i = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
        j = torch.arange(n_keys, device=device)[None, :]
        block = None if bias is None else bias.block(i, j).to(dtype)
        visible = self.visible(mask, n_queries, n_keys, device)
        weights = self.weights(q, k, visible, block, None if x is None else x.to(dtype))
        # weights that are the same for all rows or heads may come as one
        return weights @ v, weights.expand(*q.shape[:2], n_queries, n_keys)

    def visible(self, mask: Mask, n_queries: int, n_keys: int, device: torch.device | str | None = None) -> Tensor:
        """The mask with this backend's own pattern: bool, broadcastable to (B, H, Tq, Tk)."""
        i = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
        own = self.pattern(i, torch.arange(n_keys, device=device)[None, :])
        dense = mask.dense(n_queries, n_keys, device)
        return dense if own is None else dense & own

    def repeat_kv(self, t: Tensor) -> Tensor:
        """(B, G, T, D) -> (B, H, T, D), interleaved: query head h reads key/value head h // (H/G)."""
        return t.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1)

    def ran(self, kernel: str) -> None:
        """Record the kernel that computed the last call."""
        if torch.compiler.is_compiling():
            self.kernel = f"{kernel}, compiled"  # not read before, which would make it a condition of the graph
        elif self.kernel != kernel:
            self.kernel = kernel

    def settings(self) -> dict:
        """The options as a plain dictionary."""
        return asdict(self.options)

    def extra_repr(self) -> str:
        return f"{self.name}, H={self.n_heads}, G={self.n_kv_heads}, D={self.head_dim}, {self.options}"

    @property
    def dropout_now(self) -> float:
        return self.dropout if self.training else 0.0
