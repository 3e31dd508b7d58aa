"""Bugs in how the module behaves: memory, layout, state, declarations, errors."""

from __future__ import annotations

from dataclasses import replace

import torch
from sound import Sound
from torch import nn

from attnzoo.contract import Attention, Capabilities
from attnzoo.masks import Mask


class UninitialisedRows(Sound):
    """rows that see no key are never written"""

    caught_by = "unwritten_memory"

    def mix(self, weights, v):
        out = torch.empty(*weights.shape[:3], v.shape[3], dtype=v.dtype, device=v.device)
        some = (weights != 0).any(-1)
        return torch.where(some[..., None], weights @ v, out)


class BatchRowsShared(Sound):
    """state shared between batch rows: keys centred over the batch"""

    caught_by = "batch_rows"

    def mix(self, weights, v):
        return weights @ (v + 1e-3 * v.mean(0, keepdim=True))


class FirstRowForAll(Sound):
    """the mask of batch row 0 used for all"""

    caught_by = "mask_fields"

    def mask_of(self, mask, n_queries, n_keys, q):
        return super().mask_of(mask, n_queries, n_keys, q)[:1]


class QueriesScaledInPlace(Sound):
    """queries scaled in place"""

    caught_by = "inputs_untouched"

    def scores(self, q, k):
        if not torch.is_grad_enabled():
            return q.mul_(self.scale) @ k.mT
        return super().scores(q, k)


class AssumesContiguous(Sound):
    """reads memory as if every tensor were contiguous"""

    caught_by = "strides"

    def attend(self, q, k, v, mask, bias, x):
        if v.stride(-1) == 1 and 0 < v.stride(1) < v.stride(2):
            v = v.as_strided(v.shape, v.contiguous().stride())
        return super().attend(q, k, v, mask, bias, x)


class RemembersLastCall(Sound):
    """a value of the last call leaks into the next"""

    caught_by = "determinism"
    last = 0.0

    def mix(self, weights, v):
        out = weights @ v * (1 + 1e-3 * self.last)
        self.last = float(v.detach().flatten()[0])
        return out


class Noise(Sound):
    """noise in the last bits of every call"""

    caught_by = "determinism"

    def mix(self, weights, v):
        return weights @ v * (1 + 3e-7 * torch.randn_like(v[..., :1, :1]))


class StateOutsideStateDict(Sound):
    """a random tensor that state_dict does not hold"""

    caught_by = "state_dict"

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.offset = 1 + 1e-6 * float(torch.rand(()))

    def mix(self, weights, v):
        return weights @ v * self.offset


class HeadsMixed(Sound):
    """a little of the next head in each head"""

    caught_by = "head_groups"

    def mix(self, weights, v):
        out = weights @ v
        return out + 1e-3 * out.roll(1, 1)


class CompiledDiffers(Sound):
    """another formula when compiled"""

    caught_by = "compilation"

    def scores(self, q, k):
        return super().scores(q, k) * (1.01 if torch.compiler.is_compiling() else 1.0)


class CompiledDecodingDiffers(Sound):
    """another formula where one token is decoded compiled"""

    caught_by = "compilation"

    def scores(self, q, k):
        alone = q.shape[2] == 1 and torch.compiler.is_compiling()
        return super().scores(q, k) * (1.01 if alone else 1.0)


class GraphPerToken(Sound):
    """decoding compiled, a new graph for every token"""

    caught_by = "compilation"

    def scores(self, q, k):
        out = super().scores(q, k)
        for _ in range(k.shape[2] if q.shape[2] == 1 and torch.compiler.is_compiling() else 0):
            out = out + 0.0
        return out


class GraphPerLength(Sound):
    """a new graph for every length"""

    caught_by = "compilation"

    def scores(self, q, k):
        return (
            super().scores(q, k)
            + 0.0 * len(str(int(q.shape[2]) ** 3)) * torch.zeros(int(str(q.shape[2])), device=q.device).sum()
        )


class AutocastLoses(Sound):
    """normaliser accumulated in bfloat16 under autocast"""

    caught_by = "autocast"

    def mix(self, weights, v):
        if torch.is_autocast_enabled(v.device.type):
            total = torch.zeros_like(weights[..., :1], dtype=torch.bfloat16)
            unscaled = (weights / weights.amax(-1, keepdim=True)).bfloat16()
            for j in range(weights.shape[-1]):
                total = total + unscaled[..., j : j + 1]
            return (unscaled.float() @ v.float() / total.float()).to(v.dtype)
        return weights @ v


class KernelNotRecorded(Sound):
    """does not say what ran"""

    caught_by = "kernel_is_recorded"

    def ran(self, kernel):
        pass


class ChecksNothing(Sound):
    """shapes are not checked: wrong ones broadcast or crash"""

    caught_by = "wrong_requests"

    def forward(self, q, k, v, mask=None, bias=None, x=None):
        return self.attend(q, k, v, Mask() if mask is None else mask, bias, x)


class ErrorTooLate(Sound):
    """the request is checked after the scores were computed"""

    caught_by = "wrong_requests"

    def forward(self, q, k, v, mask=None, bias=None, x=None):
        if (
            q.dim() == k.dim() == 4
            and q.shape[1] == k.shape[1]
            and q.shape[3] == k.shape[3]
            and q.device == k.device
            and q.dtype == k.dtype
        ):
            q[:1] @ k[:1].mT
        return super().forward(q, k, v, mask, bias, x)


class DropsWhatItCannot(Sound):
    """declares no window, and drops it instead of refusing"""

    caught_by = "declared_or_refused"
    capabilities = Capabilities(masks=frozenset({"key_padding", "documents", "bidirectional", "prefix"}))

    def forward(self, q, k, v, mask=None, bias=None, x=None):
        return super().forward(q, k, v, replace(mask, window=None, sinks=0), bias, x)


class IgnoresUndeclaredBias(Sound):
    """declares no score bias, and ignores one instead of refusing"""

    caught_by = "declared_or_refused"
    capabilities = Capabilities(bias=False)

    def forward(self, q, k, v, mask=None, bias=None, x=None):
        return super().forward(q, k, v, mask, None, x)


class DeclaresTooMuch(Sound):
    """declares Dv ≠ D and cannot"""

    caught_by = "declared_or_refused"

    def mix(self, weights, v):
        if v.shape[3] != self.head_dim:
            raise NotImplementedError("values of another head dim")
        return super().mix(weights, v)


class QuadraticMemory(Sound):
    """declares linear memory and stores the n x n matrix"""

    caught_by = "growth"
    capabilities = Capabilities(time=2.0, memory=1.0)


class QuadraticTime(Attention):
    """declares linear time, and reads all keys chunk by chunk"""

    source = "none"
    capabilities = Capabilities(masks=frozenset(), bias=False, dropout=False, time=1.0, memory=2.0)
    caught_by = "growth"

    def attend(self, q, k, v, mask, bias, x):
        self.ran("planted/chunks")
        k, v = self.repeat_kv(k), self.repeat_kv(v)
        visible = mask.dense(q.shape[2], k.shape[2], q.device)
        outs = []
        for start in range(0, q.shape[2], 64):
            rows = slice(start, start + 64)
            scores = (q[:, :, rows] * self.scale) @ k.mT
            seen = visible[:, :, rows]
            empty = ~seen.any(-1, keepdim=True)
            kind = scores.float() if scores.dtype.itemsize == 2 else scores
            weights = kind.masked_fill(~seen, float("-inf")).masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)
            outs.append(weights.to(v.dtype) @ v)
        return torch.cat(outs, 2)


class DefinitionLeaks(Sound):
    """the definition itself is wrong in the way the kernel is: both see one key ahead"""

    caught_by = "future_by_gradient"

    def weights(self, q, k, visible, bias, x):
        ahead = visible | torch.nn.functional.pad(visible, (1, 0))[..., :-1]
        return super().weights(q, k, ahead, bias, x)

    def mask_of(self, mask, n_queries, n_keys, q):
        seen = super().mask_of(mask, n_queries, n_keys, q)
        return seen | torch.nn.functional.pad(seen, (1, 0))[..., :-1]


class ParameterWithoutGradient(Sound):
    """a learned temperature used in the definition and not in the kernel"""

    caught_by = "gradients"

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.temperature = nn.Parameter(torch.zeros(()))

    def weights(self, q, k, visible, bias, x):
        return super().weights(q * self.temperature.exp(), k, visible, bias, x)

    def scores(self, q, k):
        return super().scores(q * self.temperature.detach().exp(), k)
