"""Linear attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.contract import Request, ScoreBias
from attnzoo.kernels.features import elu_plus_one
from attnzoo.kernels.gates import wide
from attnzoo.kernels.recurrent import FROM_QKV, ChunkOptions, Recurrent, Terms
from attnzoo.masks import Mask
from attnzoo.registry import register


@dataclass(frozen=True)
class LinearOptions(ChunkOptions):
    """chunk: tokens computed together, a power of two; changes the speed, not the result beyond rounding."""

    chunk: int = 128


@register("linear")
class Linear(Recurrent):
    """Linear attention with the feature map φ = elu + 1.

    O_i = φ(q_i) Σ_{j≤i} φ(k_j) v_j^T / φ(q_i) Σ_{j≤i} φ(k_j); the keys are not scaled. Not an approximation of softmax.
    Cost: time O(T·D·Dv), memory O(T). State: G·D·(Dv+1) float32, whatever T. Computed in chunks, states and sums in float32.
    Departures: where the sum of all φ(k) in sight is below 1e-30 (keys below about -69) the output is 0; the paper adds
    positions to the embeddings (``positions=sinusoidal`` or learned), where rope turns q and k before φ; QK-norm, on by
    default (the paper has none).
    Use: for a constant state and linear time, where recalling single far tokens matters little.
    """

    Options = LinearOptions
    source = "arXiv:2006.16236"
    capabilities = replace(FROM_QKV, masks=FROM_QKV.masks | {"bidirectional"}, scale=False)
    options: LinearOptions
    ones = 1

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        yield from super().refusals(request)
        if {"documents", "bidirectional"} <= request.mask_fields:
            yield "linear takes documents under a causal mask only"
        if request.options.kernel == "fla":
            if "bidirectional" in request.mask_fields:
                yield "fla takes linear under a causal mask only"
            if request.dtype == torch.float16:
                yield "fla gives the sums that linear divides by in float16, where they overflow: give bfloat16"

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        similarity = (elu_plus_one(q) @ elu_plus_one(k).mT).masked_fill(~visible, 0.0)
        total = similarity.sum(-1, keepdim=True)
        return similarity / total.masked_fill(total == 0, 1.0)

    def terms(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor | None) -> Terms:
        queries = elu_plus_one(q)
        # a common factor of a query's features cancels in the ratio; without it both sums may underflow
        queries = queries / queries.amax(-1, keepdim=True).detach()
        return Terms(queries, elu_plus_one(k), F.pad(v, (0, 1), value=1.0))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        if mask.causal:
            return super().attend(q, k, v, mask, bias, x)
        self.ran("linear/whole")
        kind, hidden = wide(q.dtype), None if mask.key_padding is None else ~mask.key_padding[:, None, :, None]
        t = self.masked_terms(q.to(kind), k.to(kind), v.to(kind), x, hidden, None, None)
        with torch.autocast(q.device.type, enabled=False):
            sums = t.q.unflatten(1, (k.shape[1], -1)) @ (t.k.mT @ t.v)[:, :, None]  # (B, G, H/G, Tq, Dv + 1)
        return self.finish(sums.flatten(1, 2), sums).to(q.dtype)
