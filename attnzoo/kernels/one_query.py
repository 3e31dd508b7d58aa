"""Softmax attention of one query, written out, over a cache that lies as a CPU reads it fastest. Shapes: see `attnzoo.shapes`.

One query reads every key and value once, and memory sets its time. With the tokens side by side, (B, G, D, T), both products
run along memory and take two thirds of the time of torch's fused kernel on (B, G, T, D). Several queries that share a key
gain nothing (LOG.md, 2026-11-30).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnzoo.cache import KVCache
from attnzoo.contract import masked_softmax

KERNEL = "products"


def laid_out(cache: KVCache) -> KVCache:
    """An empty cache whose keys and values, still seen as (B, G, T, D), lie as (B, G, D, T), where one query gains by it."""
    if _fits(cache.keys):
        cache.keys, cache.values = (t.view(*t.shape[:2], t.shape[3], t.shape[2]).mT for t in (cache.keys, cache.values))
    return cache


def suits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether this is one query a head, over keys and values of its own that lie so."""
    alone = q.shape[2] == 1 and q.shape[1] == k.shape[1]
    return alone and k.stride(-1) != 1 and v.stride(-1) != 1 and _fits(k)


def attend(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, scale: float) -> Tensor:
    """q (B, H, 1, D), k (B, H, T, D), v (B, H, T, Dv), a mask (B or 1, H or 1, 1, T), bool or to be added -> (B, H, 1, Dv)."""
    if torch.compiler.is_compiling() and not torch.is_grad_enabled():
        return _whole(q, k, v, attn_mask, scale)
    return _written_out(q, k, v, attn_mask, scale)


def _written_out(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, scale: float) -> Tensor:
    scores = (q * scale) @ k.mT
    if attn_mask is None:
        return scores.softmax(-1) @ v
    if attn_mask.dtype == torch.bool:
        return masked_softmax(scores, attn_mask) @ v
    return masked_softmax(scores + attn_mask, attn_mask > -math.inf) @ v


def _fits(t: Tensor) -> bool:
    return t.device.type == "cpu" and t.dtype.itemsize >= 4  # written out in halves, scores would be rounded to them


@torch.library.custom_op("attnzoo::one_query", mutates_args=())
def _whole(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, scale: float) -> Tensor:
    """`attend` as one operation to torch.compile, which would turn the products of one row into loops of its own: a decoding
    step of 10 M parameters at context 4096 then takes twice as long (LOG.md, 2026-11-30)."""
    return _written_out(q, k, v, attn_mask, scale)


@_whole.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, scale: float) -> Tensor:
    return q.new_empty(*q.shape[:3], v.shape[3])
