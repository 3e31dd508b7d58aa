"""Checks of tensors before any kernel runs: one error with every reason, never a broadcast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnzoo import arguments
from attnzoo.arguments import demand, having, instance, tensor, whole
from attnzoo.bias import ScoreBias
from attnzoo.errors import Refused, RequestError
from attnzoo.masks import Mask

if TYPE_CHECKING:
    from attnzoo.contract import Attention


def check_tensors(
    attn: Attention, q: Tensor, k: Tensor, v: Tensor, x: Tensor | None, mask: Mask, bias: ScoreBias | None
) -> None:
    """Raise `RequestError` with every reason why q, k, v and x do not fit this attention, or where one of all these is
    something else (a mask that is a tensor, as other libraries take)."""
    if not (
        isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor) and isinstance(mask, Mask)
        and (x is None or isinstance(x, Tensor)) and (bias is None or isinstance(bias, ScoreBias))
    ):  # fmt: skip
        _check_kinds(q, k, v, x, mask, bias)
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise RequestError(
            "q, k and v have four axes (batch, heads, tokens, head dim)",
            [f"{n} is {tuple(t.shape)}" for n, t in (("q", q), ("k", k), ("v", v)) if t.dim() != 4],
        )
    why = []
    if q.shape[1] != attn.n_heads:
        why.append(f"q has {q.shape[1]} heads, expected H = {attn.n_heads}")
    for name, t in (("k", k), ("v", v)):
        if t.shape[1] != attn.n_kv_heads:
            why.append(f"{name} has {t.shape[1]} heads, expected G = {attn.n_kv_heads}")
        if t.shape[0] != q.shape[0]:
            why.append(f"{name} has batch {t.shape[0]}, q has {q.shape[0]}")
    for name, t in (("q", q), ("k", k)):
        if t.shape[3] != attn.head_dim:
            why.append(f"{name} has head dim {t.shape[3]}, expected D = {attn.head_dim}")
    if k.shape[2] != v.shape[2]:
        why.append(f"{k.shape[2]} keys but {v.shape[2]} values")
    if not (q.shape[2] and k.shape[2]):
        why.append(f"at least one query and one key are needed; got {q.shape[2]} and {k.shape[2]}")
    if not (q.dtype == k.dtype == v.dtype) or not q.is_floating_point():
        why.append(f"q, k and v need one floating dtype; got {q.dtype}, {k.dtype}, {v.dtype}")
    if not (q.device == k.device == v.device):
        why.append(f"q, k and v are on different devices: {q.device}, {k.device}, {v.device}")
    if attn.capabilities.needs_x and x is None:
        why.append(f"{attn.name} reads the layer's input: pass x (B, T, C)")
    if attn.capabilities.needs_x and x is not None and attn.d_model not in (None, x.shape[-1]):
        why.append(f"x has width {x.shape[-1]}, expected C = {attn.d_model}")
    if x is not None and (x.dim() != 3 or x.shape[:2] != (q.shape[0], q.shape[2])):
        why.append(f"x must be (B, Tq, C) = ({q.shape[0]}, {q.shape[2]}, C); got {tuple(x.shape)}")
    if why:
        raise RequestError("these tensors do not fit this attention", why)


def _check_kinds(q: Any, k: Any, v: Any, x: Any, mask: Any, bias: Any) -> None:
    expected = (
        "an attnzoo.Mask, whose fields (causal, window, sinks, prefix, key_padding, documents) say who may see whom"
    )
    demand(
        "this cannot be attended to",
        tensor("q", q, "(B, H, Tq, D)"),
        tensor("k", k, "(B, G, Tk, D)"),
        tensor("v", v, "(B, G, Tk, Dv)"),
        tensor("x", x, "(B, Tq, C)", optional=True),
        instance("mask", mask, Mask, expected),
        instance(
            "bias", bias, ScoreBias, "an attnzoo.ScoreBias, which is asked for blocks of positions,", optional=True
        ),
    )


def check_room(
    batch_size: int,
    max_tokens: int,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    value_dim: int | None = None,
) -> None:
    """Raise `RequestError` unless a cache can be made for this."""
    demand(
        "no cache can be made for this",
        whole("batch_size", batch_size, 0),
        whole("max_tokens", max_tokens, 1),
        arguments.device("device", device, optional=True),
        arguments.dtype("dtype", dtype, floating=True, optional=True),
        whole("value_dim", value_dim, 0, optional=True),
    )


def check_cache(attn: Attention, cache: Any, q: Tensor) -> None:
    """Raise `RequestError` unless the cache is one of this attention's, by what it holds; each kind is looked at once."""
    kind = type(cache)
    if (
        torch.compiler.is_compiling() or (kind,) in attn._cleared
    ):  # in this order: a graph must not depend on what was cleared
        return
    own = attn.new_cache(1, 1, device=q.device, dtype=q.dtype)
    held = ("length", "max_tokens", *getattr(own, "__dict__", ()))
    expected = f"what {attn.name}'s new_cache makes, {type(own).__name__}"
    demand("these tokens cannot be added to the cache", having("cache", cache, held, expected))
    attn._cleared.add((kind,))


def check_extension(q: Tensor, k: Tensor, v: Tensor, cache: Any, mask: Mask) -> None:
    """Raise unless these new tokens can be added to the cache: `RequestError`, or `Refused` for a mask that looks ahead."""
    new, why = k.shape[2], []
    if q.shape[2] != new:
        why.append(f"{q.shape[2]} queries for {new} new keys; each new token brings one of each")
    if cache.length + new > cache.max_tokens:
        why.append(f"the cache is full: it holds {cache.length} of {cache.max_tokens} tokens and {new} more were given")
    batch = next((t.shape[0] for t in _held(cache) if t.dim() > 2), k.shape[0])  # all have the batch first
    if batch != k.shape[0]:
        why.append(f"the cache was made for batch {batch}; these keys are batch {k.shape[0]}")
    for part in (cache, *_inner(cache)):
        held, values = getattr(part, "keys", None), getattr(part, "values", None)
        if isinstance(held, Tensor) and (held.dtype != k.dtype or held.device != k.device):
            why.append(f"the cache is {held.dtype} on {held.device}; these keys are {k.dtype} on {k.device}")
        if isinstance(values, Tensor) and values.shape[3] != v.shape[3]:
            dims = f"the cache holds values of dim {values.shape[3]}, got {v.shape[3]}"
            why.append(f"{dims}: new_cache(value_dim={v.shape[3]})")
    if why:
        raise RequestError("these tokens cannot be added to the cache", why)
    mask.check_lengths(cache.length + new, q.shape[0])
    if not mask.causal or cache.length < mask.prefix > cache.length + new or 0 < cache.length < mask.prefix:
        raise Refused(
            "decoding needs a causal mask, and a prefix must arrive whole in the first call: "
            "otherwise earlier tokens would have had to see tokens that were not there yet"
        )


def _inner(cache: Any) -> Iterator[Any]:
    """The caches that a cache is made of."""
    for name, part in getattr(cache, "__dict__", {}).items():
        if name == "length":  # to look at it would make a graph of its own for every length
            continue
        if not isinstance(part, (Tensor, int)) and hasattr(part, "length"):
            yield part


def _held(cache: Any) -> Iterator[Tensor]:
    """The tensors among a cache's attributes, in tuples and lists too, and among those of the caches it is made of."""
    if isinstance(cache, Tensor):
        yield cache
        return
    for part in cache if isinstance(cache, (tuple, list)) else vars(cache).values():
        if isinstance(part, (Tensor, tuple, list)) or hasattr(part, "length"):
            yield from _held(part)
