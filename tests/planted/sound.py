"""A correct softmax attention, cut into steps so that a planted bug changes exactly one of them; and the list of bugs."""

from __future__ import annotations

import importlib
import math

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.contract import Attention, Capabilities

FILES = (
    "bugs_softmax", "bugs_masks", "bugs_decoding", "bugs_recurrent", "bugs_sparse", "bugs_module", "bugs_far", "bugs_remote",
    "bugs_memory",
)  # fmt: skip


class Sound(Attention):
    """Softmax attention without a fault: the suite must pass it."""

    source = "arXiv:1706.03762"
    capabilities = Capabilities()
    caught_by = ""

    def attend(self, q, k, v, mask, bias, x):
        self.ran("planted/plain")
        n_queries, n_keys = q.shape[2], k.shape[2]
        k, v = self.spread(k), self.spread(v)
        scores = self.scores(q, k)
        if bias is not None:
            i, j = self.positions(n_queries, n_keys, q)
            scores = scores + bias.block(i, j)
        weights = self.normalise(
            scores.float() if scores.dtype.itemsize == 2 else scores, self.mask_of(mask, n_queries, n_keys, q)
        )
        return self.mix(self.drop(weights.to(v.dtype)), v)

    def spread(self, t: Tensor) -> Tensor:
        return t.repeat_interleave(self.n_heads // self.n_kv_heads, 1)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * self.scale) @ k.mT

    def positions(self, n_queries: int, n_keys: int, q: Tensor) -> tuple[Tensor, Tensor]:
        i = torch.arange(n_keys - n_queries, n_keys, device=q.device)[:, None]
        return i, torch.arange(n_keys, device=q.device)[None, :]

    def mask_of(self, mask, n_queries: int, n_keys: int, q: Tensor) -> Tensor:
        return mask.dense(n_queries, n_keys, q.device)

    def normalise(self, scores: Tensor, visible: Tensor) -> Tensor:
        empty = ~visible.any(-1, keepdim=True)
        scores = scores.masked_fill(~visible, -math.inf).masked_fill(empty, 0.0)
        return scores.softmax(-1).masked_fill(empty, 0.0)

    def drop(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, self.dropout_now)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v


def planted() -> list[type[Attention]]:
    """Every planted bug, in the order of the files."""
    found = []
    for name in FILES:
        module = importlib.import_module(name)
        found += [
            c
            for c in vars(module).values()
            if isinstance(c, type) and c.__module__ == name and vars(c).get("caught_by")
        ]
    return found
