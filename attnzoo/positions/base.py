"""The interface of position schemes. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from attnzoo.components import Component
from attnzoo.contract import ScoreBias
from attnzoo.options import Options


class Positions(nn.Module, Component):
    """What tells a model where its tokens are. A scheme overrides one of `embed`, `phases` and `bias`; positions are those of a
    token in its document, padding not counted, and go on where a cache ends.

    An option called ``max_tokens`` is the number of positions that it has. A method ``reference(positions)`` may say in float64
    what `embed` adds, or what `phases` gives; `attnzoo check` compares.

    Attributes:
        turns: whether it gives `phases`: queries and keys are then turned in pairs of channels, and the head dim must be even.
        needs_bias: whether it gives a `bias`: backends without scores refuse it.
        relative: whether a score depends on the difference of two positions alone.
        initial_std: of the normal distribution that its parameters start from; None leaves them as the class sets them.
        longest: tokens that it has positions for; None is any number.
    """

    kind: ClassVar[str] = "positions"
    turns: ClassVar[bool] = False
    needs_bias: ClassVar[bool] = False
    relative: ClassVar[bool] = False
    initial_std: ClassVar[float | None] = None

    def __init__(self, options: Options, *, d_model: int, n_heads: int, head_dim: int) -> None:
        super().__init__()
        self.options, self.d_model, self.n_heads, self.head_dim = options, d_model, n_heads, head_dim
        self.longest: int | None = getattr(options, "max_tokens", None)

    @classmethod
    def least_parameters(cls, options: Options, *, d_model: int, n_heads: int) -> int:
        """How many learned numbers it has at least: known before any are made, so that a file with too few is refused."""
        return 0

    @classmethod
    def acts_on_embeddings(cls) -> bool:
        """Whether all layers see its positions: it cannot be of some alone."""
        return cls.embed is not Positions.embed

    def embed(self, h: Tensor, positions: Tensor, end: int | None = None) -> Tensor:
        """Embeddings (B, T, C) with positions added; every position is below ``end``, where the caller knows."""
        return h

    def phases(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """What `attnzoo.positions.rotate` needs: cosines and sines (B or 1, 1, T, D), the sines of the first half of the channels
        negative. Computed once a forward pass and shared by all layers of the scheme."""
        return None

    def bias(self) -> ScoreBias | None:
        """The score bias."""
        return None
