"""The interface every attention stands behind. Shapes: see `attnzoo.shapes`.

Three things are kept apart: who may see whom (`Mask`), the rule that mixes values (a subclass of `Attention`, with the
pattern it adds), and the kernel that computes it (`attnzoo.kernels`).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnzoo.bias import ScoreBias
from attnzoo.cache import KVCache
from attnzoo.capabilities import Capabilities, Options, Request
from attnzoo.errors import Refused
from attnzoo.masks import Mask
from attnzoo.rule import Rule
from attnzoo.softmax import causal_pairs, masked_softmax, softmax_flops
from attnzoo.validate import check_cache, check_extension, check_room, check_tensors

__all__ = [
    "Attention",
    "Capabilities",
    "KVCache",
    "Options",
    "Request",
    "ScoreBias",
    "causal_pairs",
    "masked_softmax",
    "softmax_flops",
]


class Attention(Rule):
    """Base class of every backend: checks the request, keeps the cache, and holds the definition.

    A new variant writes `attend`, and `weights` where its rule is not softmax. It declares ``capabilities`` and ``source``,
    and ``Options`` if it has settings. What it inherits: validation, `extend` over a plain KV cache, the float64
    `reference`, refusals, costs.

    Args:
        n_heads, n_kv_heads: H and G; H must be a multiple of G.
        head_dim: D.
        d_model: C, for rules that read the layer's input.
        dropout: probability of dropping an attention weight, in training only.
        scale: what the scores are multiplied by; 1/sqrt(D) when None.
        options: an instance of the class's ``Options``.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "new_cache" in vars(cls):  # a cache of its own is asked for as carefully as the inherited one
            cls.new_cache = _checked(vars(cls)["new_cache"])  # type: ignore[method-assign]

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask = Mask(),
        bias: ScoreBias | None = None,
        x: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            q, k, v: (B, H, Tq, D), (B, G, Tk, D), (B, G, Tk, Dv), of one floating dtype and device.
            mask: who may see whom.
            bias: added to the scores.
            x: (B, Tq, C), for rules with gates of their own.

        Returns:
            (B, H, Tq, Dv). Rows that see no key are exactly 0.

        Raises:
            RequestError: shapes, types or devices that do not fit, with every reason.
            Refused: the backend cannot honour part of the request.
        """
        check_tensors(self, q, k, v, x, mask, bias)
        mask.check_lengths(k.shape[2], q.shape[0])
        self._check_request(q, k, v, mask, bias)
        return self.attend(q, k, v, mask, bias, x)

    @torch.no_grad()
    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask = Mask(),
        bias: ScoreBias | None = None,
        x: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The definition this backend is held to, in float64, O(Tq·Tk), without dropout.

        Returns:
            output (B, H, Tq, Dv) and effective weights (B, H, Tq, Tk).
        """
        return self.define(q, k, v, mask, bias, x)

    def define(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask = Mask(),
        bias: ScoreBias | None = None,
        x: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`reference` with gradients: what the gradient checks differentiate."""
        check_tensors(self, q, k, v, x, mask, bias)
        mask.check_lengths(k.shape[2], q.shape[0])
        return self._written_out(q, k, v, mask, bias, x, torch.float64)

    def new_cache(
        self,
        batch_size: int,
        max_tokens: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        value_dim: int | None = None,
    ):
        """Decoding state for ``max_tokens`` tokens, allocated once; has ``nbytes`` and ``length``.

        Tensors of three axes and more that a cache holds have the batch first.

        Args:
            value_dim: Dv; None is D, 0 says that the values are the keys, which are then kept once.
        """
        check_room(batch_size, max_tokens, device, dtype, value_dim)
        dtype = dtype or torch.get_default_dtype()
        shape = (batch_size, self.n_kv_heads, max_tokens)
        keys = torch.zeros(*shape, self.head_dim, device=device, dtype=dtype)
        if value_dim == 0:
            return KVCache(keys, keys)
        return KVCache(keys, torch.zeros(*shape, value_dim or self.head_dim, device=device, dtype=dtype))

    def cache_bytes(self, batch_size: int, max_tokens: int, dtype: torch.dtype, value_dim: int | None = None) -> int:
        """What `new_cache` takes, by formula."""
        channels = self.head_dim + (self.head_dim if value_dim is None else value_dim)
        return batch_size * self.n_kv_heads * max_tokens * channels * dtype.itemsize

    def extend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache,
        mask: Mask = Mask(),
        bias: ScoreBias | None = None,
        x: Tensor | None = None,
    ) -> Tensor:
        """Attend from n ≥ 1 new tokens to everything in the cache and to themselves, and remember them.

        The result equals the last n rows of one full pass over all tokens. ``mask.key_padding`` and ``mask.documents`` cover
        all tokens so far, the new ones included.

        Raises:
            RequestError: a full cache, or tensors that do not fit it; the cache is left as it was.
            Refused: a mask that lets a token see tokens that are not there yet.
        """
        check_tensors(self, q, k, v, x, mask, bias)
        check_cache(self, cache, q)
        check_extension(q, k, v, cache, mask)
        self._check_request(q, k, v, mask, bias)
        return self.attend_cached(q, k, v, cache, mask, bias, x)

    def attend_cached(self, q, k, v, cache, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        """`extend` after its checks; a backend with a cache of its own overrides this with `new_cache` and `cache_bytes`."""
        keys, values = cache.append(k, v)
        return self.attend(q, keys, values, mask, bias, x)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def with_layout(self, n_kv_heads: int, head_dim: int) -> Attention:
        """This attention, its parameters shared, for other key/value heads and another head dim; scores keep their scale."""
        other = copy.copy(self)
        other.n_kv_heads, other.head_dim = n_kv_heads, head_dim
        other.ran = self.ran  # type: ignore[method-assign]  # what runs is recorded here
        return other

    def _check_request(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None) -> None:
        recording = torch.is_grad_enabled()
        bias_gradient = recording and bias is not None and any(p.requires_grad for p in bias.parameters())
        training = recording and (q.requires_grad or k.requires_grad or v.requires_grad)
        asked = (
            self.n_kv_heads, self.head_dim, v.shape[3], q.device.type, q.dtype, mask.fields, mask.contiguous_documents,
            q.shape[2] != k.shape[2], bias is not None, bias_gradient, self.dropout_now, training,
            bias is not None and bias.alibi_slopes is not None,
        )  # fmt: skip
        compiling = torch.compiler.is_compiling()  # a traced call must leave no trace in the module
        if not compiling and asked in self._cleared:
            return
        why = self.reasons(Request(self.n_heads, *asked, options=self.options))
        if why:
            raise Refused(f"{self.name} cannot compute this", why)
        if not compiling:
            self._cleared.add(asked)


def _checked(new_cache: Callable[..., Any]) -> Callable[..., Any]:
    """A subclass's `Attention.new_cache` behind the checks of its arguments."""

    @functools.wraps(new_cache)
    def make(self: Attention, batch_size: int, max_tokens: int, *how: Any, **named: Any) -> Any:
        known = ("device", "dtype", "value_dim")
        asked = dict(zip(known, how, strict=False)) | {key: named[key] for key in known if key in named}
        check_room(batch_size, max_tokens, **asked)
        return new_cache(self, batch_size, max_tokens, *how, **named)

    return make
