"""Performer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.contract import masked_softmax
from attnzoo.kernels.features import log_positive_features, orthogonal_directions
from attnzoo.kernels.gates import wide
from attnzoo.kernels.recurrent import FROM_QKV, ChunkOptions, Recurrent, StateCache, Terms
from attnzoo.registry import register

NOTHING = -1e30
"""Logarithm of a feature that does not count; finite, so that differences of two are 0 and not NaN."""


@dataclass(frozen=True)
class PerformerOptions(ChunkOptions):
    """features: m random features; None for D ln D, at least D. seed: of their directions."""

    features: int | None = None
    seed: int = 0

    def faults(self) -> list[str]:
        few = self.features is not None and self.features < 1
        return [*super().faults(), *([f"features={self.features}: at least 1"] if few else [])]


class PeakCache(StateCache):
    """A state in units of exp(peak), the largest log feature of a key so far, (B, G)."""

    def __init__(self, state: Tensor, max_tokens: int) -> None:
        super().__init__(state, max_tokens)
        self.peak = torch.full(state.shape[:2], NOTHING, dtype=state.dtype, device=state.device)

    @property
    def nbytes(self) -> int:
        return self.state.nbytes + self.peak.nbytes


@register("performer")
class Performer(Recurrent):
    """Softmax attention estimated by positive orthogonal random features (FAVOR+), causal.

    O_i = Σ_{j≤i} φ(q_i)·φ(k_j) v_j / Σ_{j≤i} φ(q_i)·φ(k_j), φ_r(y) = exp(w_r·z - |z|²/2), z = sqrt(s) y, s = 1/sqrt(D);
    unbiased for exp(s q·k) before the division, with a variance that grows as exp(s |q + k|²).
    Cost: time O(T·m·Dv), memory O(T·m). State: G·(m·(Dv+1) + 1) float32, whatever T. The sums are kept in units of the
    largest key feature so far, so that no key overflows and none that matters is lost; that is exact, not a stabiliser.
    Departures: positions are added to the embeddings in the paper (rope turns q and k before the features, so that it
    estimates softmax with rope); the directions are drawn once (the paper may redraw them in training) and shared by all heads
    and layers; a weight below e^-87 of the largest possible may be lost, and where the sum of all is below e^-69 (|q| and |k|
    in the tens, pointing apart) the output is 0.
    Use: to approximate softmax attention itself while queries and keys stay short.
    """

    Options = PerformerOptions
    source = "arXiv:2009.14794"
    capabilities = FROM_QKV
    kernels = ("auto", "chunked")  # see `attnzoo.kernels.fla`
    options: PerformerOptions
    ones = 1

    def __init__(self, **how) -> None:
        super().__init__(**how)
        d = self.head_dim
        m = self.options.features or max(d, round(d * math.log(d)))
        self.directions = nn.Buffer(orthogonal_directions(m, d, self.options.seed))

    @property
    def state_width(self) -> int:
        return self.directions.shape[0]

    def log_features(self, t: Tensor) -> Tensor:
        with torch.autocast(t.device.type, enabled=False):  # exponents: bfloat16 would lose their fractions
            return log_positive_features(t * math.sqrt(self.scale), self.directions)

    def masked_terms(self, q, k, v, x, hidden: Tensor | None, starts: Tensor | None, cache) -> Terms:
        queries, keys = self.log_features(q), self.log_features(k)
        queries = (
            queries - queries.amax(-1, keepdim=True).detach()
        ).exp()  # a common factor of a query's features cancels
        if hidden is not None:
            keys = keys.masked_fill(hidden, NOTHING)
        before = torch.full_like(keys[:, :, 0, 0], NOTHING) if cache is None else cache.peak
        peaks = running_peaks(keys.detach().amax(-1), before, starts)  # (B, G, Tk + 1)
        keys, decay = (keys - peaks[..., 1:, None]).exp(), (peaks[..., :-1] - peaks[..., 1:])[..., None]
        if cache is not None:
            cache.peak = peaks[..., -1]
        if hidden is not None:
            keys = keys.masked_fill(hidden, 0.0)
        if starts is not None:  # the state is emptied there
            decay = decay.masked_fill(starts[:, None, :, None], 0.0)
        return Terms(queries, keys, F.pad(v, (0, 1), value=1.0), decay)

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None):
        return PeakCache(super().new_cache(batch_size, max_tokens, device, dtype, value_dim).state, max_tokens)

    def cache_bytes(self, batch_size, max_tokens, dtype, value_dim=None) -> int:
        peak = batch_size * self.n_kv_heads * wide(dtype).itemsize
        return super().cache_bytes(batch_size, max_tokens, dtype, value_dim) + peak

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        log_kernel = torch.logsumexp(self.log_features(q)[:, :, :, None] + self.log_features(k)[:, :, None], -1)
        return masked_softmax(log_kernel, visible)


def running_peaks(peaks: Tensor, before: Tensor, starts: Tensor | None) -> Tensor:
    """(B, G, T + 1): ``before`` (B, G), then the largest of it and the peaks (B, G, T) so far; anew from each start."""
    peaks = torch.cat([before[..., None], peaks], -1)
    if starts is None:
        return peaks.cummax(-1).values
    # the running maximum of (document, rank of the peak) stays within the document
    rank = peaks.argsort(-1).argsort(-1)
    run = F.pad(starts, (1, 0)).long().cumsum(-1)[:, None]
    return peaks.gather(-1, (run * peaks.shape[-1] + rank).cummax(-1).indices)
