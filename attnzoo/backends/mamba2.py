"""The state-space dual of Mamba-2."""

from __future__ import annotations

from torch import Tensor

from attnzoo.kernels.decay import DecayGate, DecayOptions, median_memory
from attnzoo.kernels.recurrent import FROM_X, Recurrent, Terms, decay_between
from attnzoo.registry import register


@register("mamba2")
class Mamba2(Recurrent):
    """The SSD form of Mamba-2: a scalar decay of each head and a step Δ, both computed from x.

    S_t = α_t S_{t-1} + Δ_t k_t v_t^T, O_t = s S_t^T q_t, α_t = exp(-A Δ_t), Δ_t = softplus(x_t w + b);
    q, k and v are the paper's C, B and X. Δ both writes and forgets: what it forgets more slowly by a smaller Δ it also hardly
    writes, so slow gates want a small A.
    Cost: time O(T·D·Dv), memory O(T). State: G·D·Dv float32, whatever T.
    Departures: s = 1/sqrt(D) (the paper has 1); q and k belong to their head (the paper's are shared by all); no skip D·X;
    QK-norm, on by default (the paper has none). Of the Mamba block around it: the convolution (``model.short_conv``) has no
    SiLU and no bias and is off by default; the gate (``model.output_gate``) is a sigmoid behind the norm of each head
    (``model.head_norm``), where theirs is a SiLU before a norm over all; v has C channels, not 2 C, and an MLP follows.
    Use: for a state that forgets by content, at one number a head and token. In the published ranges it forgets within some 14
    tokens before training, and a small model learns no recall over longer distances; with A = 0.001 and Δ = 1 it does with one
    seed of two (experiments/README.md).
    """

    Options = DecayOptions
    source = "arXiv:2405.21060"
    capabilities = FROM_X
    options: DecayOptions
    initial_memory = staticmethod(median_memory)  # type: ignore[assignment]

    def __init__(self, **how) -> None:
        super().__init__(**how)
        self.gate = DecayGate(self.d_model, self.n_kv_heads, 1, self.options)

    def terms(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor | None) -> Terms:
        assert x is not None
        steps = self.gate.steps(x)  # (B, G, T, 1)
        return Terms(q * self.scale, k, v * steps, self.gate.decay(steps))

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        assert x is not None
        steps = self.repeat_kv(self.gate.steps(x))
        decay = decay_between(self.repeat_kv(self.gate(x)), visible)[..., 0]
        return q @ k.mT * self.scale * decay * steps.mT * visible
