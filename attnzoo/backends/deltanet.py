"""DeltaNet."""

from __future__ import annotations

from attnzoo.kernels.delta import DeltaRule
from attnzoo.kernels.recurrent import ChunkOptions
from attnzoo.registry import register


@register("deltanet")
class DeltaNet(DeltaRule):
    """The delta rule: what the state answers to k_t is moved towards v_t by β_t.

    S_t = (I - β_t k_t k_t^T) S_{t-1} + β_t k_t v_t^T, O_t = S_t^T q_t, β_t = σ(x_t w), q and k of length 1.
    Cost: time O(T·D·(Dv + chunk)), memory O(T), in chunks by the WY form. State: G·D·Dv float32, whatever T.
    Departures: the SiLU and convolution before q and k are normalised and the norm of the output are the layer's
    business; with G < H the β are those of the key/value heads.
    Use: where keys come back with new values: the old one is replaced instead of added to.
    """

    Options = ChunkOptions
    source = "arXiv:2406.06484"
