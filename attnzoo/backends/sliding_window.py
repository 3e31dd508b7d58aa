"""Softmax attention over the last W keys."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnzoo.contract import Options, ScoreBias
from attnzoo.errors import RequestError
from attnzoo.kernels.window import WindowAttention
from attnzoo.masks import Mask
from attnzoo.registry import register


@dataclass(frozen=True)
class WindowOptions(Options):
    """window: W, the number of keys a query sees, its own included."""

    window: int = 64

    def __post_init__(self) -> None:
        if self.window < 1:
            raise RequestError(f"window={self.window}: a window has at least 1 key, the query's own")


@register("sliding_window")
class SlidingWindow(WindowAttention):
    """Softmax attention over exactly W keys: i - W < j ≤ i.

    O_i = Σ_j A_ij v_j, A_i the softmax of q_i·k_j / sqrt(D) over these j.
    Cost: time and memory O(T·W), in blocks of queries that read their own and the previous key blocks.
    State: a ring of W keys and values, 2·W·G·D, whatever T. Gives up every direct look further back than W - 1 tokens.
    Departures: Longformer's global tokens and windows that differ from layer to layer are left to the mask's sinks and to
    ``model.attention_pattern``.
    Use: for long texts whose needs are local, or alternated with layers that see everything.
    """

    Options = WindowOptions
    source = "arXiv:2004.05150, arXiv:2310.06825"
    kernels = ("auto", "blocks", "flex", "flash_attn", "flash_attn_3")
    options: WindowOptions

    @property
    def window(self) -> int:
        return self.options.window

    def _attend_at(self, q, k, v, mask: Mask, bias: ScoreBias | None, key_positions: Tensor | None) -> Tensor:
        if self.options.kernel in ("flash_attn", "flash_attn_3"):
            return self.by_flash_attn(q, k, v, mask, bias, window=self.window)
        return super()._attend_at(q, k, v, mask, bias, key_positions)
