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
    multiply = _whole_product if torch.compiler.is_compiling() else torch.matmul
    scores = multiply(q * scale, k.mT)
    if attn_mask is None:
        weights = scores.softmax(-1)
    elif attn_mask.dtype == torch.bool:
        weights = masked_softmax(scores, attn_mask)
    else:
        weights = masked_softmax(scores + attn_mask, attn_mask > -math.inf)
    return multiply(weights, v)


def _whole_product(a: Tensor, b: Tensor) -> Tensor:
    """a (B, H, 1, N) @ b (B, H, N, M) as an operation that torch.compile leaves whole: of a plain product of one row it makes
    loops of its own, in which a decoding step takes twice as long (LOG.md, 2026-11-30)."""
    unread = a.new_empty(a.shape[0] * a.shape[1], 1, b.shape[3])
    return torch.baddbmm(unread, a.flatten(0, 1), b.flatten(0, 1), beta=0).unflatten(0, a.shape[:2])


def _fits(t: Tensor) -> bool:
    return t.device.type == "cpu" and t.dtype.itemsize >= 4  # written out in halves, scores would be rounded to them
