"""Penalties by distance."""

from __future__ import annotations

import math

from torch import Tensor

from attnzoo.components import register
from attnzoo.contract import ScoreBias
from attnzoo.kernels.constants import constant
from attnzoo.options import Options
from attnzoo.positions.base import Positions


@register("alibi")
class Alibi(Positions):
    """A penalty on the scores that grows linearly with distance, by a slope of its own in each head."""

    source = "arXiv:2108.12409"
    needs_bias = True
    relative = True

    def __init__(self, options: Options, *, d_model: int, n_heads: int, head_dim: int) -> None:
        super().__init__(options, d_model=d_model, n_heads=n_heads, head_dim=head_dim)
        self.score_bias = AlibiBias(n_heads)

    def bias(self) -> ScoreBias:
        return self.score_bias


class AlibiBias(ScoreBias):
    """-slope_h · |i - j|."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.alibi_slopes = self.slopes = tuple(
            alibi_slopes(n_heads)
        )  # plain numbers: no cast of the module can round them

    def block(self, i: Tensor, j: Tensor) -> Tensor:
        distance = (i - j).abs().float()
        slopes = constant(self.slopes, distance.device)
        return -slopes.view(-1, *[1] * distance.dim()) * distance

    def by_head(self, device):
        slopes = constant(self.slopes, device)
        return lambda i, j, h: -slopes[h] * (i - j).abs().float()


def alibi_slopes(n_heads: int) -> list[float]:
    """The paper's slopes: a geometric series for powers of two; else that of the power below, then every other one of the
    next power's series.

    >>> alibi_slopes(6)
    [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    """
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    if power < n_heads:
        slopes += [2 ** (-8 * (h + 1) / (2 * power)) for h in range(2 * power)][::2][: n_heads - power]
    return slopes
