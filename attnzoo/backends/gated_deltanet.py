"""Gated DeltaNet."""

from __future__ import annotations

from torch import Tensor

from attnzoo.kernels.decay import DecayGate, DecayOptions, median_memory
from attnzoo.kernels.delta import DeltaRule
from attnzoo.registry import register


@register("gated_deltanet")
class GatedDeltaNet(DeltaRule):
    """The delta rule with a scalar decay of each head, computed from x.

    S_t = α_t (I - β_t k_t k_t^T) S_{t-1} + β_t k_t v_t^T, O_t = s S_t^T q_t, α_t = exp(-A Δ_t), Δ_t = softplus(x_t w_α + b),
    β_t = σ(x_t w_β + b_β), q and k of length 1, s = 1.
    Cost: time O(T·D·(Dv + chunk)), memory O(T). State: G·D·Dv float32, whatever T.
    Departures: as deltanet's. Public code draws A from [0, 16], has values of 2 D channels, and a SiLU gate behind the norm of
    the output: here ``model.output_gate``, a sigmoid, off by default.
    Use: as deltanet, on texts long enough that what is old must also fade. In the published ranges it fades within some 14
    tokens before training, and a small model learns recall over longer distances with one seed of two; with A = 1 and Δ = 0.001
    with both (experiments/README.md).
    """

    Options = DecayOptions
    source = "arXiv:2412.06464"
    options: DecayOptions
    initial_memory = staticmethod(median_memory)  # type: ignore[assignment]

    def __init__(self, **how) -> None:
        super().__init__(**how)
        self.gate = DecayGate(self.d_model, self.n_kv_heads, 1, self.options)

    def log_decay(self, x: Tensor) -> Tensor:
        return self.gate(x)
