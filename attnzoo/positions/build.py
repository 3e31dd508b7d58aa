"""A position scheme from its settings."""

from __future__ import annotations

from typing import Any

from attnzoo import components
from attnzoo.positions.base import Positions


def build_positions(name: str, *, d_model: int, n_heads: int, head_dim: int, **options: Any) -> Positions:
    """A scheme by name, with its own options.

    Raises:
        RequestError: an unknown name, with the nearest one; an option that it lacks or that makes no sense; an odd head dim
            for one that turns pairs of channels.
    """
    cls = components.get("positions", name)
    return cls(components.parse("positions", name, options), d_model=d_model, n_heads=n_heads, head_dim=head_dim)
