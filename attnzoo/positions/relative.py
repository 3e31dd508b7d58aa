"""Learned numbers by distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.components import register
from attnzoo.contract import ScoreBias
from attnzoo.errors import RequestError
from attnzoo.options import Options
from attnzoo.positions.base import Positions


@dataclass(frozen=True)
class RelativeOptions(Options):
    """buckets: number of distance buckets; max_distance: distances from here on share the last one."""

    buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        if self.buckets < 2:
            raise RequestError(f"buckets={self.buckets}: must be at least 2")
        if self.max_distance <= self.buckets // 2:
            raise RequestError(
                f"max_distance={self.max_distance}: must be more than the {self.buckets // 2} distances that have a bucket of "
                f"their own among buckets={self.buckets}"
            )


@register("relative")
class Relative(Positions):
    """A learned number on the scores for each head and bucket of distances (T5's), shared by the layers that have it."""

    source = "arXiv:1910.10683"
    Options = RelativeOptions
    options: RelativeOptions
    needs_bias = True
    relative = True
    initial_std = 0.02

    def __init__(self, options: RelativeOptions, *, d_model: int, n_heads: int, head_dim: int) -> None:
        super().__init__(options, d_model=d_model, n_heads=n_heads, head_dim=head_dim)
        self.score_bias = RelativeBias(n_heads, options.buckets, options.max_distance)

    @classmethod
    def least_parameters(cls, options: RelativeOptions, *, d_model: int, n_heads: int) -> int:  # type: ignore[override]
        return options.buckets * n_heads

    def bias(self) -> ScoreBias:
        return self.score_bias


class RelativeBias(ScoreBias):
    """``table[bucket of i - j, h]``; keys ahead of the query, which a causal mask hides, are in the bucket of distance 0."""

    def __init__(self, n_heads: int, buckets: int, max_distance: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(buckets, n_heads))
        self.bucket = nn.Buffer(
            distance_buckets(buckets, max_distance), persistent=False
        )  # of distances 0 … max_distance

    def block(self, i: Tensor, j: Tensor) -> Tensor:
        distance = (i - j).clamp(0, len(self.bucket) - 1)
        return F.embedding(self.bucket[distance], self.table).movedim(-1, 0)

    def by_head(self, device):
        bucket, table, furthest = self.bucket, self.table, len(self.bucket) - 1
        return lambda i, j, h: table[bucket[(i - j).clamp(0, furthest)], h]


def distance_buckets(buckets: int, max_distance: int) -> Tensor:
    """(max_distance + 1,): the bucket of each distance. The first half of the buckets holds one distance each, the others
    stretches that grow geometrically; the last also takes everything beyond.

    >>> distance_buckets(8, 16).tolist()
    [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7]
    """
    exact = buckets // 2
    growth = max_distance / exact
    # an integer distance on an edge belongs above it, whatever the power rounds to
    edges = [math.ceil(exact * growth ** (n / (buckets - exact)) - 1e-9) for n in range(1, buckets - exact)]
    distance = torch.arange(max_distance + 1)
    beyond = exact + torch.bucketize(distance, torch.tensor(edges, dtype=torch.long), right=True)
    return torch.where(distance < exact, distance, beyond)
