"""Bugs in who sees whom."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from sound import Sound

from attnzoo.masks import Mask


class ReversedMask(Sound):
    """the mask reversed: j ≥ i"""

    caught_by = "future_by_gradient"

    def mask_of(self, mask, n_queries, n_keys, q):
        return super().mask_of(mask, n_queries, n_keys, q).flip(-1, -2)


class OneAhead(Sound):
    """the mask shifted by one: j ≤ i + 1"""

    caught_by = "future_by_gradient"

    def mask_of(self, mask, n_queries, n_keys, q):
        i, j = self.positions(n_queries, n_keys, q)
        return mask.at(i, j) | (j == i + 1) if mask.static else super().mask_of(mask, n_queries, n_keys, q)


class OneBehind(Sound):
    """the mask shifted by one: j < i, the own key is lost"""

    caught_by = "mask_readout"

    def mask_of(self, mask, n_queries, n_keys, q):
        i, j = self.positions(n_queries, n_keys, q)
        return super().mask_of(mask, n_queries, n_keys, q) & ((j < i) | (i == 0))


class OneExtraFutureKey(Sound):
    """one future key in one row of an otherwise perfect mask"""

    caught_by = "future_by_gradient"

    def mask_of(self, mask, n_queries, n_keys, q):
        seen = super().mask_of(mask, n_queries, n_keys, q).clone()
        if n_queries == n_keys and n_keys > 2:
            seen[..., n_keys // 2, n_keys // 2 + 1] = True
        return seen


class FaintFuture(Sound):
    """a future key with a weight of e^-12, far below any tolerance"""

    caught_by = "future_by_change"

    def normalise(self, scores, visible):
        weights = super().normalise(scores, visible)
        return weights + 6e-6 * scores.softmax(-1).detach()


class PaddingOnQueries(Sound):
    """padding masks the queries and not the keys"""

    caught_by = "hidden_by_gradient"

    def mask_of(self, mask, n_queries, n_keys, q):
        seen = replace(mask, key_padding=None).dense(n_queries, n_keys, q.device)
        if mask.key_padding is None or n_queries != n_keys:
            return seen
        return seen & mask.key_padding[:, None, :, None]


class NaNOnEmptyRow(Sound):
    """NaN on a row that sees no key"""

    caught_by = "empty_rows"

    def normalise(self, scores, visible):
        return scores.masked_fill(~visible, -math.inf).softmax(-1)


class NaNCleanedAfterwards(Sound):
    """nan_to_num after the softmax: the gradient is still NaN"""

    caught_by = "empty_rows"

    def normalise(self, scores, visible):
        return (scores + torch.where(visible, 0.0, -math.inf)).softmax(-1).nan_to_num(0.0)


class MeanOnEmptyRow(Sound):
    """finfo.min instead of -inf: an empty row becomes the mean of all values"""

    caught_by = "empty_rows"

    def normalise(self, scores, visible):
        return scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1)


class MaskTooWeak(Sound):
    """-100 instead of -inf: a large score comes through"""

    caught_by = "future_by_change"

    def normalise(self, scores, visible):
        empty = ~visible.any(-1, keepdim=True)
        return (scores - 14.0 * ~visible).softmax(-1).masked_fill(empty, 0.0)


class TopLeft(Sound):
    """Tq ≠ Tk aligned at the first key"""

    caught_by = "definition"

    def mask_of(self, mask, n_queries, n_keys, q):
        if n_queries < n_keys and mask.static:
            return mask.dense(n_keys, n_keys, q.device)[:, :, :n_queries]
        return super().mask_of(mask, n_queries, n_keys, q)


class WindowPlusOne(Sound):
    """W + 1 keys in a window of W"""

    caught_by = "mask_readout"

    def mask_of(self, mask, n_queries, n_keys, q):
        wider = mask if mask.window is None else replace(mask, window=mask.window + 1)
        return super().mask_of(wider, n_queries, n_keys, q)


class WindowIgnored(Sound):
    """the window never reaches the kernel"""

    caught_by = "mask_readout"

    def mask_of(self, mask, n_queries, n_keys, q):
        return super().mask_of(replace(mask, window=None), n_queries, n_keys, q)


class WindowReplacesPadding(Sound):
    """with a window, padding and documents are dropped"""

    caught_by = "mask_fields"

    def mask_of(self, mask, n_queries, n_keys, q):
        kept = mask if mask.window is None else Mask(mask.causal, mask.window, mask.sinks, mask.prefix)
        return super().mask_of(kept, n_queries, n_keys, q)


class DocumentsIgnored(Sound):
    """packed documents see each other"""

    caught_by = "documents"

    def mask_of(self, mask, n_queries, n_keys, q):
        return super().mask_of(replace(mask, documents=None), n_queries, n_keys, q)


class NeighbourDocument(Sound):
    """a document also sees the last token of the one before"""

    caught_by = "hidden_by_gradient"

    def mask_of(self, mask, n_queries, n_keys, q):
        seen = super().mask_of(mask, n_queries, n_keys, q)
        i, j = self.positions(n_queries, n_keys, q)
        return seen if mask.documents is None else seen | (j == i - 1)


class SinksIgnored(Sound):
    """attention sinks lost"""

    caught_by = "mask_readout"

    def mask_of(self, mask, n_queries, n_keys, q):
        return super().mask_of(replace(mask, sinks=0), n_queries, n_keys, q)


class PrefixIgnored(Sound):
    """the prefix is masked causally"""

    caught_by = "mask_readout"

    def mask_of(self, mask, n_queries, n_keys, q):
        return super().mask_of(replace(mask, prefix=0), n_queries, n_keys, q)


class AlwaysCausal(Sound):
    """a fallback that is causal whatever was asked"""

    caught_by = "mask_readout"

    def mask_of(self, mask, n_queries, n_keys, q):
        return super().mask_of(replace(mask, causal=True), n_queries, n_keys, q)


class KernelByLength(Sound):
    """beyond 32 keys another kernel that knows no padding"""

    caught_by = "mask_fields"

    def mask_of(self, mask, n_queries, n_keys, q):
        return super().mask_of(replace(mask, key_padding=None) if n_keys > 32 else mask, n_queries, n_keys, q)


class BiasIgnored(Sound):
    """a score bias accepted and dropped"""

    caught_by = "mask_fields"

    def attend(self, q, k, v, mask, bias, x):
        return super().attend(q, k, v, mask, None, x)


class HalfPrecisionPositions(Sound):
    """positions in the input's type: 256 and 257 collide in bfloat16"""

    caught_by = "mask_readout_far"

    def mask_of(self, mask, n_queries, n_keys, q):
        seen = super().mask_of(replace(mask, causal=False, window=None, sinks=0), n_queries, n_keys, q)
        i, j = (t.to(q.dtype) for t in self.positions(n_queries, n_keys, q))
        if mask.causal:
            seen = seen & ((j <= i) | (j < mask.prefix))
        return seen if mask.window is None else seen & (((j > i - mask.window) & (j <= i)) | (j < mask.sinks))


class FinishedBlocksOnly(Sound):
    """a block's mean key is visible before the block is finished"""

    caught_by = "future_by_gradient"

    def mix(self, weights, v):
        c, n = 4, v.shape[2]
        pooled = torch.stack([v[:, :, b : b + c].mean(2) for b in range(0, n, c)], 2).repeat_interleave(c, 2)[:, :, :n]
        return weights @ v + (0.01 * pooled[:, :, -weights.shape[2] :] if weights.shape[2] == n else 0)


class TopKOverAllKeys(Sound):
    """the k best keys chosen among all, the future included, then masked"""

    caught_by = "future_by_change"

    def normalise(self, scores, visible):
        best = scores >= scores.topk(min(3, scores.shape[-1]), -1).values[..., -1:]
        return super().normalise(scores, visible & best)


class ProjectionAlongTokens(Sound):
    """keys and values mixed along the sequence before a causal mask"""

    caught_by = "future_by_gradient"

    def mix(self, weights, v):
        return weights @ (0.9 * v + 0.1 * v.mean(2, keepdim=True))
