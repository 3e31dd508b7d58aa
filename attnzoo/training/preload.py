"""Everything that a run loads anyway, components and plugins too: what a process loads from which cells are forked."""

from __future__ import annotations

import attnzoo.training.run  # noqa: F401
from attnzoo import components

for kind in components.KINDS:
    components.load(kind)
