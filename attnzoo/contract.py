"""The interface every attention stands behind. Shapes: see `attnzoo.shapes`.

Three things are kept apart: who may see whom (`Mask`), the rule that mixes values (a subclass of `Attention`, with the
pattern it adds), and the kernel that computes it (`attnzoo.kernels`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import ClassVar

import torch
from torch import Tensor, nn

from attnzoo.cache import KVCache
from attnzoo.capabilities import Capabilities, Options, Request
from attnzoo.capabilities import Options as AnyOptions
from attnzoo.errors import Refused, RequestError
from attnzoo.masks import Mask
from attnzoo.validate import check_extension, check_mask, check_tensors

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


class ScoreBias(nn.Module):
    """A bias added to the scores that can be asked for any block of positions, so that nobody needs it as an n x n tensor.

    ``alibi_slopes``: where the bias is -slope_h · |i - j|, the slope of each head, for kernels that take these alone.
    """

    alibi_slopes: Sequence[float] | None = None

    def block(self, i: Tensor, j: Tensor) -> Tensor:
        """Bias for query positions ``i`` and key positions ``j`` of one broadcast shape S: (H, *S)."""
        raise NotImplementedError


class Attention(nn.Module):
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

    Options: ClassVar[type[Options]] = Options
    capabilities: ClassVar[Capabilities]
    source: ClassVar[str]
    kernels: ClassVar[tuple[str, ...]] = ("auto",)
    projection: ClassVar[str] = "qkv"
    name: ClassVar[str] = "unregistered"

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

    @classmethod
    def declared(cls, options: AnyOptions, device: str = "cpu") -> Capabilities:
        """``capabilities`` with these options on this kind of device, for a class whose costs depend on them."""
        return cls.capabilities

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        """Reasons beyond the declared capabilities, such as a kernel that is not there."""
        return ()

    @classmethod
    def default_kv_heads(cls, n_heads: int) -> int:
        return n_heads

    def flops(self, n_queries: int, n_keys: int) -> float:
        """Forward floating-point operations of one sequence under a causal mask, two per multiply-add, projections excluded."""
        return softmax_flops(self, causal_pairs(n_queries, n_keys))

    def decode_flops(self, context: int) -> float:
        """The same for one token after ``context`` tokens in the cache; a rule that keeps a state reads only that."""
        return self.flops(1, context + 1)

    # -- the public surface -------------------------------------------------------------------------------------------

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
        check_tensors(self, q, k, v, x)
        check_mask(mask, k.shape[2], q.shape[0])
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
        check_tensors(self, q, k, v, x)
        check_mask(mask, k.shape[2], q.shape[0])
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
        if batch_size < 1 or max_tokens < 1:
            raise RequestError(f"a cache needs at least one row and one token; got {batch_size} and {max_tokens}")
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
        check_tensors(self, q, k, v, x)
        check_extension(q, k, v, cache, mask)
        self._check_request(q, k, v, mask, bias)
        return self.attend_cached(q, k, v, cache, mask, bias, x)

    def attend_cached(self, q, k, v, cache, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        """`extend` after its checks; a backend with a cache of its own overrides this with `new_cache` and `cache_bytes`."""
        keys, values = cache.append(k, v)
        return self.attend(q, keys, values, mask, bias, x)

    @classmethod
    def layout_reasons(cls, n_heads: int, n_kv_heads: int) -> list[str]:
        """Why this head layout cannot be; empty when it can."""
        if n_kv_heads < 1 or n_heads % n_kv_heads:
            return [f"{n_heads} query heads are not a multiple of {n_kv_heads} key/value heads"]
        if n_kv_heads != n_heads and not cls.capabilities.grouped_heads:
            return [f"{cls.name} takes as many key/value heads as query heads; got {n_heads} and {n_kv_heads}"]
        return []

    @classmethod
    def reasons(cls, request: Request) -> list[str]:
        """Every reason why this backend cannot compute the request; empty when it can."""
        can, why = cls.capabilities, []
        for unsupported in sorted(request.mask_fields - can.masks):
            why.append(f"{cls.name} cannot honour the mask field {unsupported!r}")
        why += cls.layout_reasons(request.n_heads, request.n_kv_heads)
        if request.options.kernel not in cls.kernels:
            why.append(f"unknown kernel {request.options.kernel!r} for {cls.name}; valid: {', '.join(cls.kernels)}")
        if request.bias and not can.bias:
            why.append(
                f"{cls.name} has no scores that a bias could be added to (alibi and relative positions need one)"
            )
        if request.dropout and not can.dropout:
            why.append(f"{cls.name} cannot drop attention weights")
        if request.cross and not can.cross:
            why.append(f"{cls.name} takes as many keys as queries")
        if request.value_dim not in (None, request.head_dim) and not can.value_dim:
            why.append(f"{cls.name} takes values of the head dim {request.head_dim}, not {request.value_dim}")
        if request.dtype not in can.dtypes:
            why.append(f"{cls.name} does not compute in {str(request.dtype).removeprefix('torch.')}")
        if request.device not in can.devices:
            why.append(f"{cls.name} does not run on {request.device}")
        elif request.training and request.device not in can.training_devices:
            why.append(f"{cls.name} has no backward on {request.device}: it runs there for inference only")
        return [*why, *cls.refusals(request)]

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
        return weights @ v, weights

    def visible(self, mask: Mask, n_queries: int, n_keys: int, device: torch.device | str | None = None) -> Tensor:
        """The mask with this backend's own pattern: bool, broadcastable to (B, H, Tq, Tk)."""
        i = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
        own = self.pattern(i, torch.arange(n_keys, device=device)[None, :])
        dense = mask.dense(n_queries, n_keys, device)
        return dense if own is None else dense & own

    def with_layout(self, n_kv_heads: int, head_dim: int) -> Attention:
        """This attention, its parameters shared, for other key/value heads and another head dim; scores keep their scale."""
        other = copy.copy(self)
        other.n_kv_heads, other.head_dim = n_kv_heads, head_dim
        other.ran = self.ran  # type: ignore[method-assign]  # what runs is recorded here
        return other

    def repeat_kv(self, t: Tensor) -> Tensor:
        """(B, G, T, D) -> (B, H, T, D), interleaved: query head h reads key/value head h // (H/G)."""
        return t.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1)

    def ran(self, kernel: str) -> None:
        """Record the kernel that computed the last call."""
        if self.kernel != kernel and not torch.compiler.is_compiling():
            self.kernel = kernel

    def settings(self) -> dict:
        """The options as a plain dictionary."""
        return asdict(self.options)

    def extra_repr(self) -> str:
        return f"{self.name}, H={self.n_heads}, G={self.n_kv_heads}, D={self.head_dim}, {self.options}"

    @property
    def dropout_now(self) -> float:
        return self.dropout if self.training else 0.0

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


def masked_softmax(scores: Tensor, visible: Tensor) -> Tensor:
    """Softmax along the key axis over visible keys; a row that sees none is exactly 0, with gradient 0.

    The row is guarded before the softmax: cleaning a NaN afterwards would still leave NaN gradients.
    """
    empty = ~visible.any(-1, keepdim=True)
    scores = scores.masked_fill(~visible, -math.inf).masked_fill(empty, 0.0)
    return torch.softmax(scores, dim=-1).masked_fill(empty, 0.0)


def causal_pairs(n_queries: int, n_keys: int) -> float:
    """Number of visible (query, key) pairs under the causal mask, last query aligned with last key."""
    rows = min(n_queries, n_keys)
    return rows * n_keys - rows * (rows - 1) / 2


def softmax_flops(attn: Attention, pairs: float) -> float:
    """Scores and aggregation, two operations per multiply-add, over the given number of (query, key) pairs per head."""
    return 4.0 * attn.n_heads * attn.head_dim * pairs
