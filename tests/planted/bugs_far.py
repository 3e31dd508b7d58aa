"""Bugs that show only somewhere: on long inputs, in later batch rows, under some masks, in some types."""

from __future__ import annotations

from dataclasses import replace

import torch
from sound import Sound
from torch.nn import functional as F

from attnzoo.masks import Mask


class SeesAheadFarOut(Sound):
    """one key too many in the single row 1030"""

    caught_by = "long_inputs"

    def mask_of(self, mask, n_queries, n_keys, q):
        i, j = self.positions(n_queries, n_keys, q)
        return super().mask_of(mask, n_queries, n_keys, q) | ((i == 1030) & (j == 1031))


class SeesAheadPastABlock(Sound):
    """row 200 reads the key after it"""

    caught_by = "mask_readout_far"

    def mask_of(self, mask, n_queries, n_keys, q):
        i, j = self.positions(n_queries, n_keys, q)
        return super().mask_of(mask, n_queries, n_keys, q) | ((i == 200) & (j == 201))


class FaintFutureFarOut(Sound):
    """beyond 128 keys the normaliser contains the future, faintly"""

    caught_by = "future_by_change"

    def normalise(self, scores, visible):
        weights = super().normalise(scores, visible)
        return (
            weights * (1 - 1e-6 * scores.detach().softmax(-1).tril().sum(-1, True))
            if scores.shape[-1] > 128
            else weights
        )


class SecondBlockLosesAKey(Sound):
    """the second block of 128 queries does not read the last key of the first"""

    caught_by = "long_inputs"

    def mask_of(self, mask, n_queries, n_keys, q):
        i, j = self.positions(n_queries, n_keys, q)
        return super().mask_of(mask, n_queries, n_keys, q) & ~((i >= 128) & (i < 256) & (j == 127))


class LongPaddingIgnored(Sound):
    """beyond 128 keys another kernel that knows no padding"""

    caught_by = "long_inputs"

    def mask_of(self, mask, n_queries, n_keys, q):
        return super().mask_of(replace(mask, key_padding=None) if n_keys > 128 else mask, n_queries, n_keys, q)


class LongGradientOff(Sound):
    """the gradient of the keys is a tenth too large beyond 128 of them"""

    caught_by = "gradients"

    def scores(self, q, k):
        return super().scores(q, 1.1 * k - 0.1 * k.detach() if k.shape[2] > 128 else k)


class WideWindowClamped(Sound):
    """a window of more than 64 keys becomes one of 64"""

    caught_by = "long_inputs"

    def mask_of(self, mask, n_queries, n_keys, q):
        narrow = mask if mask.window is None else replace(mask, window=min(mask.window, 64))
        return super().mask_of(narrow, n_queries, n_keys, q)


class ManySinksClamped(Sound):
    """no more than four sinks"""

    caught_by = "mixed_inputs"

    def mask_of(self, mask, n_queries, n_keys, q):
        return super().mask_of(replace(mask, sinks=min(mask.sinks, 4)), n_queries, n_keys, q)


class ManyHeadsReordered(Sound):
    """from eight query heads on, two of them change places"""

    caught_by = "head_groups"

    def mix(self, weights, v):
        out = weights @ v
        return out if self.n_heads < 8 else out[:, [1, 0, *range(2, self.n_heads)]]


class FourthRowUnmasked(Sound):
    """from the fourth batch row on, the first row's mask"""

    caught_by = "mixed_inputs"

    def mask_of(self, mask, n_queries, n_keys, q):
        seen = super().mask_of(mask, n_queries, n_keys, q)
        return seen if len(seen) < 4 else torch.cat([seen[:3], seen[:1].expand(len(seen) - 3, -1, -1, -1)])


class ThirdRowWithoutGradient(Sound):
    """the third batch row gets no gradient"""

    caught_by = "gradients"

    def spread(self, t):
        return super().spread(t if len(t) < 3 else torch.cat([t[:2], t[2:3].detach(), t[3:]]))


class SharedPaddingForOneRow(Sound):
    """padding given once for all batch rows is applied to the first alone"""

    caught_by = "mixed_inputs"

    def mask_of(self, mask, n_queries, n_keys, q):
        seen = super().mask_of(mask, n_queries, n_keys, q)
        if mask.key_padding is None or len(mask.key_padding) == len(q):
            return seen
        plain = super().mask_of(replace(mask, key_padding=None), n_queries, n_keys, q)
        return torch.cat([seen[:1], plain.expand(len(q) - 1, -1, -1, -1)])


class DeepPaddingIgnored(Sound):
    """more than three hidden keys in a row: the first of them are read after all"""

    caught_by = "mixed_inputs"

    def mask_of(self, mask, n_queries, n_keys, q):
        if mask.key_padding is not None and n_keys > 4:
            hidden = (~mask.key_padding).long()
            runs = F.pad(hidden, (3, 0)).unfold(1, 4, 1).sum(-1) == 4
            mask = replace(mask, key_padding=mask.key_padding | runs)
        return super().mask_of(mask, n_queries, n_keys, q)


class NegativeDocumentHidden(Sound):
    """tokens of a negative document id are taken for padding"""

    caught_by = "mixed_inputs"

    def mask_of(self, mask, n_queries, n_keys, q):
        seen = super().mask_of(mask, n_queries, n_keys, q)
        return seen if mask.documents is None else seen & (mask.documents >= 0)[:, None, None, :]


class DocumentsModuloFour(Sound):
    """document ids are told apart modulo four"""

    caught_by = "mixed_inputs"

    def mask_of(self, mask, n_queries, n_keys, q):
        few = mask if mask.documents is None else replace(mask, documents=mask.documents % 4)
        return super().mask_of(few, n_queries, n_keys, q)


class EvaluationForgetsPadding(Sound):
    """in evaluation the padding is not looked at"""

    caught_by = "mask_fields"

    def mask_of(self, mask, n_queries, n_keys, q):
        return super().mask_of(mask if self.training else replace(mask, key_padding=None), n_queries, n_keys, q)


class RecordingDiffers(Sound):
    """another output when gradients are recorded, with the right gradient"""

    caught_by = "gradients"

    def mix(self, weights, v):
        return weights @ v + (0.01 if torch.is_grad_enabled() and v.requires_grad else 0.0)


class BiasLostInHalfPrecision(Sound):
    """in 16 bits a score bias is dropped"""

    caught_by = "mixed_inputs"

    def attend(self, q, k, v, mask, bias, x):
        return super().attend(q, k, v, mask, None if q.dtype.itemsize == 2 else bias, x)


class PaddedOutputWide(Sound):
    """with padding, 16-bit input gives a float32 output"""

    caught_by = "mixed_inputs"

    def attend(self, q, k, v, mask, bias, x):
        out = super().attend(q, k, v, mask, bias, x)
        return out.float() if mask.key_padding is not None and out.dtype.itemsize == 2 else out


class Float16GradientOff(Sound):
    """the gradient of the values is halved in float16"""

    caught_by = "gradients"

    def mix(self, weights, v):
        return weights @ (0.5 * v + 0.5 * v.detach() if v.dtype == torch.float16 else v)


class Float64InFloat32(Sound):
    """float64 input is computed in float32"""

    caught_by = "mixed_inputs"

    def attend(self, q, k, v, mask, bias, x):
        if q.dtype != torch.float64 or torch.is_grad_enabled():
            return super().attend(q, k, v, mask, bias, x)
        return super().attend(q.float(), k.float(), v.float(), mask, bias, x).double()


class EpsilonInDenominator(Sound):
    """1e-7 added to the normaliser"""

    caught_by = "mixed_inputs"

    def normalise(self, scores, visible):
        weights = super().normalise(scores, visible)
        return weights * (1 - 1e-7)


class WideValuesUnpadded(Sound):
    """with Dv ≠ D the padding is lost"""

    caught_by = "mixed_inputs"

    def attend(self, q, k, v, mask, bias, x):
        other = v.shape[3] != q.shape[3]
        return super().attend(q, k, v, replace(mask, key_padding=None) if other else mask, bias, x)


class ScaleIgnored(Sound):
    """a scale of one's own is accepted and not used"""

    caught_by = "scale"

    def scores(self, q, k):
        return q @ k.mT / q.shape[-1] ** 0.5


class HiddenContentMatters(Sound):
    """values are rounded on a grid set by the largest of all, hidden ones included"""

    caught_by = "hidden_by_change"

    def mix(self, weights, v):
        step = v.detach().abs().amax((1, 2, 3), keepdim=True) * 1e-6
        return weights @ (v + ((v / step).round() * step - v).detach())


class SingleQueryReadsPadding(Sound):
    """a fast path for one query looks at no padding"""

    caught_by = "decoding"

    def attend(self, q, k, v, mask, bias, x):
        return super().attend(
            q, k, v, replace(mask, key_padding=None) if q.shape[2] == 1 < k.shape[2] else mask, bias, x
        )


class MoreQueriesThanKeysMasked(Sound):
    """with more queries than keys, padding is lost"""

    caught_by = "mixed_inputs"

    def mask_of(self, mask, n_queries, n_keys, q):
        return super().mask_of(replace(mask, key_padding=None) if n_queries > n_keys else mask, n_queries, n_keys, q)


class DocumentsReplacePadding(Sound):
    """documents and padding together: only the documents are looked at, in the second half"""

    caught_by = "mask_fields"

    def mask_of(self, mask, n_queries, n_keys, q):
        seen = super().mask_of(mask, n_queries, n_keys, q)
        if mask.documents is None or mask.key_padding is None:
            return seen
        loose = super().mask_of(Mask(mask.causal, documents=mask.documents), n_queries, n_keys, q)
        half = torch.arange(n_queries, device=q.device)[:, None] >= n_queries // 2
        return torch.where(half, loose, seen)
