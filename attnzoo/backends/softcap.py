"""Softmax over scores that are bounded softly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnzoo.contract import Capabilities, Request, ScoreBias, masked_softmax
from attnzoo.errors import RequestError
from attnzoo.kernels.constants import constant
from attnzoo.kernels.library import WithLibraries
from attnzoo.kernels.tiles import TileOptions, attend_tiles
from attnzoo.masks import Mask
from attnzoo.registry import register


@dataclass(frozen=True)
class SoftcapOptions(TileOptions):
    """cap: s, which no score exceeds in size; tile: see `TileOptions`."""

    cap: float = 50.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cap > 0:
            raise RequestError(f"cap={self.cap}: must be positive; a huge one caps nothing")


@register("softcap")
class Softcap(WithLibraries):
    """Softmax of s·tanh(S / s), S = Q K^T · scale, with s = 50: scores stay within ±s, and small ones as they are.

    A score bias is added after the cap, so that positions keep their full range.
    Cost: time O(T²), memory O(T·tile), no T² matrix. State: 2·T·G·D.
    Departure: scores alone are capped; Gemma 2 caps the model's logits too, at 30.
    Use: where logits grow in training until half precision or the softmax saturates.
    """

    Options = SoftcapOptions
    source = "arXiv:2408.00118"
    capabilities = Capabilities(memory=1.0, products=True)
    kernels = ("auto", "tiles", "flex", "flash_attn", "flash_attn_3")
    options: SoftcapOptions

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        yield from super().refusals(request)
        if request.options.kernel == "flash_attn" and request.dropout:
            yield "flash_attn does not drop weights under a soft cap"

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        scores = self.options.cap * torch.tanh(q @ k.mT * self.scale / self.options.cap)
        return masked_softmax(scores if bias is None else scores + bias, visible)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        cap, kernel = self.options.cap, self.options.kernel
        if kernel == "flex" and q.shape[2] > 1:
            # as a plain number it would be an argument that torch's compiler cannot take
            s = constant((float(cap),), q.device).squeeze()
            return self.by_flex(q, k, v, mask, bias, change=lambda score: s * torch.tanh(score / s))[0]
        if kernel in ("flash_attn", "flash_attn_3"):
            return self.by_flash_attn(q, k, v, mask, bias, softcap=cap)
        self.ran("softcap/tiles")
        return attend_tiles(
            q, k, v, mask, bias, scale=self.scale, tile=self.options.tile, dropout=self.dropout_now,
            change=lambda scores, start: cap * torch.tanh(scores / cap),
        )  # fmt: skip
