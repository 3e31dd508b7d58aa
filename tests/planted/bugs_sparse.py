"""Bugs in summaries of past blocks and in the choice by them."""

from __future__ import annotations

import torch

from attnzoo.backends.hierarchical import Hierarchical
from attnzoo.backends.moba import MoBA
from attnzoo.backends.nsa import NSA
from attnzoo.kernels.summaries import Past


class EarlySummary(NSA):
    """the summary of a block is visible inside the block, before it is finished"""

    caught_by = "future_by_gradient"

    def attend_past(self, q, k, v, summaries, past, bias, x):
        return super().attend_past(q, k, v, summaries, _Early(past.mask, past.n_keys, past.c), bias, x)


class ChosenAmongAll(MoBA):
    """the k best blocks chosen among all, the future ones included, then masked"""

    caught_by = "future_by_change"

    def attend_past(self, q, k, v, summaries, past, bias, x):
        return super().attend_past(q, k, v, summaries, _All(past.mask, past.n_keys, past.c), bias, x)


class PaddingPooled(NSA):
    """padding is pooled into the summaries"""

    caught_by = "hidden_by_gradient"

    def summarise(self, k, v, members):
        return super().summarise(k, v, None)


class SummariesOfThePrefillOnly(MoBA):
    """blocks that are finished while decoding get no mean key"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        before = [t.clone() for t in cache.summaries]
        out = super().attend_cached(q, k, v, cache, mask, bias, x)
        if cache.length > k.shape[2]:
            for held, old in zip(cache.summaries, before, strict=True):
                held.copy_(old)
        return out


class NodeWeighsOne(Hierarchical):
    """a pooled node weighs as one key, however many it stands for"""

    caught_by = "definition"

    def _attend(self, q, nodes, *reads):
        return super()._attend(q, nodes._replace(held=(nodes.held > 0).to(nodes.held.dtype)), *reads)


class ChoiceOfTheFirstGroup(NSA):
    """all heads read the blocks that the first group chose"""

    caught_by = "head_groups"

    def _repeat(self, t):
        return super()._repeat(t if t.is_floating_point() else t[:, :1].expand_as(t))


class _Early(Past):
    def seen_from(self, i):
        return super().seen_from((i + self.c).clamp(max=self.n_keys - 1))


class _All(Past):
    def seen_from(self, i):
        return super().seen_from(torch.full_like(i, self.n_keys - 1))
