"""The fused softmax with fewer key/value heads than query heads."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from attnzoo.contract import Attention, Capabilities, Request, ScoreBias
from attnzoo.kernels.sdpa import KERNELS, fused_softmax, refusals
from attnzoo.masks import Mask
from attnzoo.registry import register


class _Grouped(Attention):
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


@register("gqa")
class GQA(_Grouped):
    """Grouped-query attention: softmax attention with G < H, a quarter of the query heads unless ``n_kv_heads`` says otherwise.

    Query head h reads key/value head h // (H/G). Cost: as sdpa. State: 2·T·G·D, H/G times smaller than with G = H.
    """

    source = "arXiv:2305.13245"

    @classmethod
    def default_kv_heads(cls, n_heads: int) -> int:
        return max(n_heads // 4, 1) if n_heads % 4 == 0 else 1


@register("mqa")
class MQA(_Grouped):
    """Multi-query attention: every query head reads the one key/value head.

    Cost: as sdpa. State: 2·T·D, H times smaller than with G = H.
    """

    source = "arXiv:1911.02150"

    @classmethod
    def default_kv_heads(cls, n_heads: int) -> int:
        return 1

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        if request.n_kv_heads != 1:
            yield f"mqa has one key/value head; {request.n_kv_heads} were asked for (gqa or sdpa take more)"
        yield from super().refusals(request)
