"""Retention (RetNet)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.kernels.recurrent import FROM_QKV, ChunkOptions, Recurrent, Terms, decay_between
from attnzoo.registry import register


@dataclass(frozen=True)
class RetentionOptions(ChunkOptions):
    """decay: γ of every head, in (0, 1]; None for the paper's 1 - 2^(-5-h). normalise: divide as the paper's section 2.1 does."""

    decay: float | None = None
    normalise: bool = True

    def faults(self) -> list[str]:
        wrong = self.decay is not None and not 0 < self.decay <= 1
        return [*super().faults(), *([f"decay={self.decay}: must be in (0, 1]"] if wrong else [])]


@register("retention")
class Retention(Recurrent):
    """Retention: linear attention without a feature map, with a fixed decay γ_h of each head.

    O_i = Σ_{j≤i} R_ij v_j / max(|Σ_j R_ij|, 1), R_ij = s q_i·k_j γ^(i-j) / sqrt(Σ_{m≤i} γ^(i-m)), s = 1/sqrt(D);
    without ``normalise`` O_i = Σ_{j≤i} s q_i·k_j γ^(i-j) v_j.
    Cost: time O(T·D·Dv), memory O(T). State: G·D·(Dv+1) float32 (G·D·Dv without ``normalise``), whatever T.
    It fades to 1/e in some 32·2^h tokens in head h.
    Departures: the released code divides by max(Σ_j |R_ij|, 1), through which no gradient flows, where this follows the
    paper's text; and in both it is the norm of each head's output that takes the scale away: ``model.head_norm``, off by
    default, without which the model is another. The swish gate is ``model.output_gate``, a sigmoid, off by default; rope
    stands for xPos; v has D channels, not 2 D; QK-norm, on by default (the paper has none). With G < H the decays are those
    of the key/value heads.
    Use: as the simplest decayed state, without gates or parameters.
    """

    Options = RetentionOptions
    source = "arXiv:2307.08621"
    capabilities = FROM_QKV
    options: RetentionOptions

    @property
    def ones(self) -> int:  # type: ignore[override]
        return int(self.options.normalise)

    def log_decay(self, like: Tensor) -> Tensor:
        """(G,)"""
        heads = torch.arange(self.n_kv_heads, dtype=like.dtype, device=like.device)
        if self.options.decay is not None:
            return torch.full_like(heads, math.log(self.options.decay))
        return torch.log1p(-torch.exp2(-5 - heads))

    def terms(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor | None) -> Terms:
        decay = self.log_decay(k)[None, :, None, None].expand(1, -1, k.shape[2], 1)
        return Terms(q, k, F.pad(v, (0, self.ones), value=1.0), decay)

    def finish(self, sums: Tensor, counts: Tensor) -> Tensor:
        sums = sums * self.scale
        if not self.options.normalise:
            return sums
        values, total = sums.split([sums.shape[-1] - 1, 1], -1)
        log_decay = self.log_decay(sums)[:, None]
        ages = torch.expm1(counts[:, None] * log_decay) / torch.expm1(log_decay)  # Σ_m γ^(i-m), (B or 1, G, Tq)
        ages = torch.where(log_decay == 0, counts[:, None].to(ages), ages)
        return values / torch.maximum(total.abs(), self.repeat_kv(ages.clamp(min=1)).sqrt()[..., None])

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        log_decay = self.repeat_kv(self.log_decay(k)[None, :, None, None])
        decay = decay_between(log_decay.expand(1, -1, k.shape[2], 1), visible)[..., 0] * visible
        if not self.options.normalise:
            return q @ k.mT * self.scale * decay
        ages = decay.sum(-1, keepdim=True)
        retained = q @ k.mT * self.scale * decay / ages.masked_fill(ages == 0, 1.0).sqrt()
        return retained / retained.sum(-1, keepdim=True).abs().clamp(min=1)
