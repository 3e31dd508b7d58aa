"""Attention with a sigmoid in place of the softmax."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnzoo.contract import Attention, Capabilities, ScoreBias
from attnzoo.errors import RequestError
from attnzoo.kernels.tiles import TileOptions, attend_tiles
from attnzoo.masks import Mask
from attnzoo.registry import register


@dataclass(frozen=True)
class SigmoidOptions(TileOptions):
    """length: n of the bias -log n, the training length in the paper; None: the number of keys each query sees."""

    length: int | None = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length is not None and self.length < 1:
            raise RequestError(f"length={self.length}: at least 1, or null for the number of keys each query sees")


@register("sigmoid")
class Sigmoid(Attention):
    """Weights σ(q·k · scale - log n), each key on its own: rows need not sum to 1.

    n is one number for all queries (``length``, as in the paper: the length trained on), so that weights of n keys with
    scores near 0 sum to about 1; or, with ``length=null``, the number of keys that the query sees, at any length.
    Cost: time O(T²), memory O(T·tile), no T² matrix. State: 2·T·G·D.
    Departure: the paper's models also have QK-norm and a learned scale on each residual branch; those are the layer's.
    Use: where keys should not compete for a fixed sum of weight.
    """

    Options = SigmoidOptions
    source = "arXiv:2409.04431"
    capabilities = Capabilities(memory=1.0, products=True)
    options: SigmoidOptions

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        scores = q @ k.mT * self.scale
        scores = scores if bias is None else scores + bias
        fixed = self.options.length
        n = visible.sum(-1, keepdim=True).clamp(min=1) if fixed is None else torch.full((), fixed, device=q.device)
        return torch.sigmoid(scores - n.to(q.dtype).log()) * visible

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        self.ran("sigmoid/tiles")
        return attend_tiles(
            q, k, v, mask, bias, scale=self.scale, tile=self.options.tile, dropout=self.dropout_now,
            normalise=self._sigmoid,
        )  # fmt: skip

    def _sigmoid(self, scores: Tensor, visible: Tensor) -> Tensor:
        if self.options.length is None:
            scores = scores - visible.sum(-1, keepdim=True).clamp(min=1).to(scores.dtype).log()
        else:
            scores = scores - math.log(self.options.length)
        return torch.sigmoid(scores).masked_fill(~visible, 0.0)
