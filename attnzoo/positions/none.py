"""No positions."""

from __future__ import annotations

from attnzoo.components import register
from attnzoo.positions.base import Positions


@register("none")
class NoPositions(Positions):
    """No positions (NoPE): order is told by the causal mask and by rules that have it in gates or states."""

    source = "arXiv:2305.19466"
