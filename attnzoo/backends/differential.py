"""The difference of two softmaxes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnzoo.contract import Attention, Capabilities, Options, Request, ScoreBias, causal_pairs, masked_softmax
from attnzoo.kernels import sdpa
from attnzoo.kernels.gates import wide
from attnzoo.masks import Mask
from attnzoo.masks.translate import sdpa_arguments
from attnzoo.registry import register

NORM_EPS = 1e-5


@dataclass(frozen=True)
class DifferentialOptions(Options):
    """lambda_init: part of λ that is not learned; norm: RMSNorm over each head's output, then times 1 - lambda_init."""

    lambda_init: float = 0.8
    norm: bool = True


@register("differential")
class Differential(Attention):
    """(softmax(q₁k₁ᵀ/√(D/2)) - λ softmax(q₂k₂ᵀ/√(D/2))) v, λ = exp(λq₁·λk₁) - exp(λq₂·λk₂) + lambda_init, then the norm.

    q₁ and q₂ are the even and odd channels of q, and so for k: pairs of RoPE (c, c + D/2) stay whole, as D is a multiple of
    4. The paper's heads have d channels in each half and values of 2d: here D = 2d, so that H is half that of a model with
    heads of d. λ's four vectors of D/2 are shared by the heads. Both softmaxes run in one fused call over twice the heads,
    each query with the other half set to 0.
    Cost: time O(Tq·Tk), memory O(T) (a mask that is not plain causality densely, as in sdpa). State: 2·T·G·D.
    Not on mla: its two products of half heads cannot both be read from one query carried into the latent space.
    With G < H the halves of a query head read the halves of its key head, as in the authors' code for flash attention; in
    their eager code both may read one half.
    Departures: lambda_init is the same in every layer, by option (the paper: 0.8 - 0.6·exp(-0.3·(layer - 1)), and 0.8
    throughout in its ablation); the norm has no gain of its own, which the output projection takes in. No dropout.
    Use: where weight spread over irrelevant tokens is what hurts, as in retrieval from long contexts.
    """

    Options = DifferentialOptions
    source = "arXiv:2410.05258"
    capabilities = Capabilities(memory=1.0, dropout=False)
    options: DifferentialOptions

    def __init__(self, *, head_dim: int, scale: float | None = None, **others) -> None:
        super().__init__(head_dim=head_dim, scale=scale or math.sqrt(2 / head_dim), **others)
        self.lambdas = nn.Parameter(0.1 * torch.randn(4, head_dim // 2))  # λq₁, λk₁, λq₂, λk₂

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        if request.head_dim % 4:
            yield f"differential needs a head dim that is a multiple of 4 (two halves of whole pairs): {request.head_dim}"

    @property
    def lam(self) -> Tensor:
        """λ, a scalar."""
        q1, k1, q2, k2 = self.lambdas.float() if self.lambdas.dtype.itemsize == 2 else self.lambdas
        return (q1 * k1).sum().exp() - (q2 * k2).sum().exp() + self.options.lambda_init

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        maps = []
        for half in range(2):
            scores = q[..., half::2] @ k[..., half::2].mT * self.scale
            maps.append(masked_softmax(scores if bias is None else scores + bias, visible))
        return maps[0] - self.lam.to(q.dtype) * maps[1]

    def define(self, q, k, v, mask: Mask = Mask(), bias: ScoreBias | None = None, x: Tensor | None = None):
        out, weights = super().define(q, k, v, mask, bias, x)
        gain = self._gain(out)
        return out * gain, weights * gain

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        kind = v.dtype
        if (
            q.device.type == "cpu"
        ):  # where the maps nearly cancel, the norm makes what halves lose as large as the output
            q, k, v = (t.to(wide(t.dtype)) for t in (q, k, v))
        bool_mask, is_causal = sdpa_arguments(mask, q.shape[2], k.shape[2], q.device)
        attn_mask = sdpa.score_mask(bool_mask, is_causal, bias, q, k.shape[2])
        if bias is not None and attn_mask is not None:
            attn_mask = attn_mask.repeat_interleave(2, 1)
        odd = torch.arange(self.head_dim, device=q.device) % 2
        halves = q[:, :, None] * torch.stack([1 - odd, odd])[:, None].to(q.dtype)  # (B, H, 2, Tq, D)
        out, kernel = sdpa.call(
            halves.flatten(1, 2), k, v, attn_mask, is_causal and attn_mask is None, scale=self.scale
        )
        self.ran(kernel.replace("sdpa/", "differential/"))
        first, second = out.unflatten(1, (-1, 2)).unbind(2)
        difference = first - self.lam * second
        return (difference * self._gain(difference)).to(kind)

    def _gain(self, out: Tensor) -> Tensor | float:
        """What the norm multiplies each head's output (B, H, T, Dv) by: (B, H, T, 1)."""
        if not self.options.norm:
            return 1.0
        out = out.float() if out.dtype.itemsize == 2 else out
        return (1 - self.options.lambda_init) * torch.rsqrt(out.square().mean(-1, keepdim=True) + NORM_EPS)

    def flops(self, n_queries: int, n_keys: int) -> float:
        """Two scores over half the channels each, and two sums of the values."""
        return 6.0 * self.n_heads * self.head_dim * causal_pairs(n_queries, n_keys)
