"""Softmax attention on a latent cache."""

from __future__ import annotations

from attnzoo.kernels.sdpa import FusedSoftmax
from attnzoo.registry import register


@register("mla")
class MLA(FusedSoftmax):
    """Multi-head latent attention: the fused softmax of sdpa behind the layer's projection ``mla``.

    The projection makes keys and values of all heads from one latent of r channels a token and a key of Dr channels that
    carries positions; see `attnzoo.projections.mla.LatentKV`. Other backends take it with ``model.projection=mla``.
    Cost: time O(Tq·Tk), memory O(T), as sdpa. State: T·(r + Dr) in the layer; as an operator on q, k and v, which is
    what this class alone is, 2·T·G·D.
    Departures: those of the projection: Dr is a part of D and v has D channels (DeepSeek-V2: Dr beside D, and v of D);
    queries have no latent of their own (as in V2-Lite); QK-norm, on by default, also normalises each head of q and the shared
    key, and without it the latent is not normalised; no YaRN.
    Use: long contexts, where the cache decides and one key/value head is too few.
    """

    source = "arXiv:2405.04434"
    projection = "mla"
