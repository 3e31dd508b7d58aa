"""Kimi delta attention."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnzoo.kernels.decay import DecayGate, DecayOptions, median_memory
from attnzoo.kernels.delta import DeltaRule
from attnzoo.registry import register


@dataclass(frozen=True)
class KDAOptions(DecayOptions):
    """rank: of the map from x to the decays; None for D, as in the paper."""

    rank: int | None = None

    def faults(self) -> list[str]:
        return [
            *super().faults(),
            *([f"rank={self.rank}: at least 1"] if self.rank is not None and self.rank < 1 else []),
        ]


@register("kda")
class KDA(DeltaRule):
    """The delta rule with a decay of each key channel, computed from x.

    S_t = (I - β_t k_t k_t^T) Diag(α_t) S_{t-1} + β_t k_t v_t^T, O_t = s S_t^T q_t, q and k of length 1, s = 1,
    α_t = exp(-A Δ_t), Δ_t = softplus(x_t W_1 W_2 + b), D numbers a head, β_t = σ(x_t w + b_β).
    Cost: time O(T·D·(Dv + chunk)), memory O(T); the decay inside a chunk takes log2(chunk) passes over the keys.
    State: G·D·Dv float32, whatever T. Departures: as deltanet's; the sigmoid gate of low rank behind
    the norm of the output is here ``model.output_gate``, of full rank and off by default.
    Use: as gated_deltanet, where channels should fade at rates of their own.
    """

    Options = KDAOptions
    source = "arXiv:2510.26692"
    options: KDAOptions
    initial_memory = staticmethod(median_memory)  # type: ignore[assignment]

    def __init__(self, **how) -> None:
        super().__init__(**how)
        self.gate = DecayGate(
            self.d_model, self.n_kv_heads, self.head_dim, self.options, self.options.rank or self.head_dim
        )

    def log_decay(self, x: Tensor) -> Tensor:
        return self.gate(x)
