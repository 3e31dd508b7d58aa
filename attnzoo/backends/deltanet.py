"""DeltaNet."""

from __future__ import annotations

from attnzoo.kernels.delta import DeltaRule
from attnzoo.kernels.recurrent import ChunkOptions
from attnzoo.registry import register


@register("deltanet")
class DeltaNet(DeltaRule):
    """The delta rule: what the state answers to k_t is moved towards v_t by β_t.

    S_t = (I - β_t k_t k_t^T) S_{t-1} + β_t k_t v_t^T, O_t = s S_t^T q_t, β_t = σ(x_t w + b), q and k of length 1, s = 1:
    what is written with β = 1 under a key is read back whole, and nothing of what stood there before.
    Cost: time O(T·D·(Dv + chunk)), memory O(T), in chunks by the WY form. State: G·D·Dv float32, whatever T.
    Departures: public code has s = 1/sqrt(D), which its norm of the output hides (``model.scale``), and no bias b. Its layer
    has a convolution with a SiLU behind it on q, k and v: here ``model.short_conv``, without the SiLU, and off by default; and
    the norm of the output: ``model.head_norm``, off by default. QK-norm, on by default, weighs channels before the lengths are
    taken (public code has none). With G < H the β are those of the key/value heads.
    Use: where keys come back with new values: the old one is replaced instead of added to.
    """

    Options = ChunkOptions
    source = "arXiv:2406.06484"
