"""Gated linear attention."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from attnzoo.kernels.gates import Gate
from attnzoo.kernels.recurrent import FROM_X, ChunkOptions, Recurrent, Terms, decay_between
from attnzoo.registry import register


@dataclass(frozen=True)
class GLAOptions(ChunkOptions):
    """rank: of the map from x to the gate. temperature: τ, the root taken of the gate:
    the memory of τ/ln 2 tokens at first grows with it."""

    rank: int = 16
    temperature: float = 16.0

    def faults(self) -> list[str]:
        faults = [f"rank={self.rank}: at least 1"] if self.rank < 1 else []
        faults += [f"temperature={self.temperature}: must be positive"] if self.temperature <= 0 else []
        return [*super().faults(), *faults]


@register("gla")
class GLA(Recurrent):
    """Gated linear attention: a decay of each key channel, computed from x.

    S_t = Diag(α_t) S_{t-1} + k_t v_t^T, O_t = s S_t^T q_t, α_t = σ(x_t W_1 W_2 + b)^(1/τ), s = 1/sqrt(D).
    Cost: time O(T·D·Dv), memory O(T); the decay inside a chunk takes log2(chunk) passes over the keys. State: G·D·Dv float32.
    Departures: the norm of the output (``model.head_norm``) and its gate (``model.output_gate``, a sigmoid where theirs is a
    swish) are off by default; q and k are as wide as v (half as wide); QK-norm, on by default (the paper has none). With
    G < H the gates belong to the key/value heads.
    Use: for a state that forgets by content, channel by channel.
    """

    Options = GLAOptions
    source = "arXiv:2312.06635"
    capabilities = FROM_X
    options: GLAOptions

    def __init__(self, **how) -> None:
        super().__init__(**how)
        self.gate = Gate(self.d_model, self.n_kv_heads, self.head_dim, self.options.rank)

    @classmethod
    def initial_memory(cls, options) -> float:
        return options.temperature / math.log(2)

    def log_decay(self, x: Tensor) -> Tensor:
        """(B, G, T, D)"""
        return F.logsigmoid(self.gate(x)) / self.options.temperature

    def terms(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor | None) -> Terms:
        assert x is not None
        return Terms(q * self.scale, k, v, self.log_decay(x))

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        assert x is not None
        decay = decay_between(self.repeat_kv(self.log_decay(x)), visible)  # (B, H, T, T, D)
        return (q[:, :, :, None] * k[:, :, None] * decay).sum(-1) * self.scale * visible
