"""Softmax attention through FlexAttention: any mask and score bias, compiled into one kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor

from attnzoo.contract import Attention, Capabilities, Options, Request, ScoreBias
from attnzoo.kernels import flex
from attnzoo.masks import Mask
from attnzoo.registry import register


@register("flex")
class Flex(Attention):
    """Exact softmax attention by FlexAttention; ``kernel`` is auto, compiled or eager.

    O = softmax(Q K^T / sqrt(D) + M) V. auto compiles on CUDA and runs eagerly elsewhere; on a CPU torch has no backward
    for it: inference only.
    Cost: time O(blocks the mask leaves visible), memory O(T) compiled and O(Tq·Tk) eager. State: 2·T·G·D.
    Use: on a GPU, for masks and score biases that the other fused kernels are given densely.
    """

    source = "arXiv:2412.05496"
    capabilities = Capabilities(
        dropout=False,
        products=True,
        dtypes=flex.DTYPES,
        training_devices=("cuda",),
        memory=1.0,
        bitwise_prefix=False,
        compiles=False,
    )
    kernels = ("auto", "compiled", "eager")

    @classmethod
    def declared(cls, options: Options, device: str = "cpu") -> Capabilities:
        return cls.capabilities if _compiles(options, device) else replace(cls.capabilities, memory=2.0)

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        if request.device == "cuda" and request.head_dim < 16 and request.options.kernel != "eager":
            yield f"flex needs head_dim of at least 16 on CUDA; got {request.head_dim}"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        compiled = _compiles(self.options, q.device.type)
        out, _, kernel = flex.flex_softmax(q, k, v, mask, bias, scale=self.scale, compiled=compiled)
        self.ran(kernel)
        return out


def _compiles(options: Options, device: str) -> bool:
    return options.kernel == "compiled" or (options.kernel == "auto" and device == "cuda")
