"""A learned vector a position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnzoo.components import register
from attnzoo.errors import RequestError
from attnzoo.options import Options
from attnzoo.positions.base import Positions


@dataclass(frozen=True)
class LearnedOptions(Options):
    """max_tokens: rows of the learned table."""

    max_tokens: int = 2048

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens={self.max_tokens}: must be at least 1")


@register("learned")
class Learned(Positions):
    """A learned vector for each absolute position below ``max_tokens``, added to the embeddings (GPT-2's)."""

    source = "arXiv:1706.03762, section 3.5"
    Options = LearnedOptions
    options: LearnedOptions
    initial_std = 0.02

    def __init__(self, options: LearnedOptions, *, d_model: int, n_heads: int, head_dim: int) -> None:
        super().__init__(options, d_model=d_model, n_heads=n_heads, head_dim=head_dim)
        self.table = nn.Embedding(options.max_tokens, d_model)

    @classmethod
    def least_parameters(cls, options: LearnedOptions, *, d_model: int, n_heads: int) -> int:  # type: ignore[override]
        return options.max_tokens * d_model

    def embed(self, h: Tensor, positions: Tensor, end: int | None = None) -> Tensor:
        n_rows = self.table.num_embeddings
        unknown = positions.numel() and not torch.compiler.is_compiling() and (end is None or end > n_rows)
        if unknown and int(positions.max()) >= n_rows:  # reading it waits for the device
            raise RequestError(
                f"position {int(positions.max())} is past the learned table of {n_rows}: raise positions.max_tokens, "
                "or take rope, alibi, sinusoidal or none"
            )
        return h + self.table(positions)
