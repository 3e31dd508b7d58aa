"""Bugs in the rule: scale, normalisation, heads, dropout, sums."""

from __future__ import annotations

import math

import torch
from sound import Sound
from torch.nn import functional as F


class NoScale(Sound):
    """no scale"""

    caught_by = "worked_numbers"

    def scores(self, q, k):
        return q @ k.mT


class ScaleByModelWidth(Sound):
    """scale by the model width H·D"""

    caught_by = "worked_numbers"

    def scores(self, q, k):
        return q @ k.mT / math.sqrt(self.n_heads * self.head_dim)


class SoftmaxOverQueries(Sound):
    """softmax over the query axis"""

    caught_by = "worked_numbers"

    def normalise(self, scores, visible):
        return super().normalise(scores.mT, visible.mT).mT


class SoftmaxOverHeads(Sound):
    """softmax over the head axis"""

    caught_by = "worked_numbers"

    def normalise(self, scores, visible):
        return scores.softmax(1) * visible


class MaskAfterSoftmax(Sound):
    """mask multiplied in after the softmax"""

    caught_by = "worked_numbers"

    def normalise(self, scores, visible):
        return scores.softmax(-1) * visible


class NoRowMaximum(Sound):
    """exponentials without the row maximum subtracted"""

    caught_by = "extreme_inputs"

    def normalise(self, scores, visible):
        weights = scores.exp() * visible
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


class ScoresClamped(Sound):
    """scores clamped to ±50 against overflow"""

    caught_by = "extreme_inputs"

    def scores(self, q, k):
        return super().scores(q, k).clamp(-50, 50)


class HalfPrecisionSum(Sound):
    """normaliser summed one by one in the input's type"""

    caught_by = "long_sums"

    def mix(self, weights, v):
        total = torch.zeros_like(v[..., :1].expand(-1, -1, -1, 1)[:, :, :1])
        unscaled = weights / weights.amax(-1, keepdim=True).clamp(min=1e-4)
        for j in range(v.shape[2]):
            total = total + unscaled[..., j : j + 1]
        return unscaled @ v / total.clamp(min=1e-4)


class ScaleAfterProduct(Sound):
    """float16 scores overflow before they are scaled"""

    caught_by = "extreme_inputs"

    def scores(self, q, k):
        return (q * 512) @ k.mT * (self.scale / 512)


class TiledHeads(Sound):
    """key/value heads tiled, 0,1,0,1, where they must be interleaved, 0,0,1,1"""

    caught_by = "head_groups"

    def spread(self, t):
        return t.repeat(1, self.n_heads // self.n_kv_heads, 1, 1)


class RepeatedAlongTokens(Sound):
    """keys and values repeated along the sequence instead of along the heads"""

    caught_by = "definition"

    def spread(self, t):
        batch, _, n, dim = t.shape
        return t.repeat_interleave(self.n_heads // self.n_kv_heads, 2).reshape(batch, self.n_heads, n, dim)


class OneHeadForAll(Sound):
    """all heads read key/value head 0"""

    caught_by = "head_groups"

    def spread(self, t):
        return t[:, :1].expand(-1, self.n_heads, -1, -1)


class SwappedHeads(Sound):
    """the output's heads in reverse order"""

    caught_by = "head_groups"

    def mix(self, weights, v):
        return (weights @ v).flip(1)


class GroupGradientAveraged(Sound):
    """gradients of shared keys and values averaged over the group instead of summed"""

    caught_by = "gradients"

    def spread(self, t):
        share = self.n_heads // self.n_kv_heads
        return super().spread(t / share + (t - t / share).detach())


class ValuesDetached(Sound):
    """values without a gradient"""

    caught_by = "gradients"

    def mix(self, weights, v):
        return weights @ v.detach() + 0 * v.sum()


class GradientSlightlyOff(Sound):
    """backward of the queries one percent too large"""

    caught_by = "gradients_by_difference"

    def scores(self, q, k):
        return super().scores(1.01 * q - 0.01 * q.detach(), k)


class DropoutInEvaluation(Sound):
    """functional dropout that stays on in evaluation"""

    caught_by = "dropout_off_in_evaluation"

    def drop(self, weights):
        return F.dropout(weights, self.dropout)


class DropoutOnOutput(Sound):
    """dropout on the output instead of on the weights"""

    caught_by = "dropout_in_training"

    def drop(self, weights):
        return weights

    def mix(self, weights, v):
        return F.dropout(weights @ v, self.dropout_now)


class DropoutNotRescaled(Sound):
    """dropped weights without the factor 1/(1 - p)"""

    caught_by = "dropout_in_training"

    def drop(self, weights):
        return F.dropout(weights, self.dropout_now) * (1 - self.dropout_now)


class DropoutIgnored(Sound):
    """dropout declared and never applied"""

    caught_by = "dropout_in_training"

    def drop(self, weights):
        return weights
