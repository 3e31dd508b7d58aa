"""Softmax attention through torch's fused kernels."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from attnzoo.contract import Attention, Capabilities, Request, ScoreBias
from attnzoo.kernels.sdpa import KERNELS, fused_softmax, refusals
from attnzoo.masks import Mask
from attnzoo.registry import register


@register("sdpa")
class SDPA(Attention):
    """Exact softmax attention, fused; ``kernel`` is auto, flash, efficient, cudnn or math.

    Cost: time O(Tq·Tk), memory O(T) with the flash, efficient and cudnn kernels; a mask that is not plain causality is
    passed densely, n x n bits, and the recorded kernel ends in ``+mask``. State: 2·T·G·D.
    ``auto`` lets torch choose, and the choice is recorded. A kernel asked for by name runs or is refused.
    """

    source = "arXiv:2205.14135, arXiv:2307.08691"
    capabilities = Capabilities(memory=1.0)
    kernels = ("auto", *KERNELS)

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        return refusals(request, request.options.kernel)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        out, kernel = fused_softmax(
            q, k, v, mask, bias, scale=self.scale, dropout=self.dropout_now, kernel=self.options.kernel
        )
        self.ran(kernel)
        return out
