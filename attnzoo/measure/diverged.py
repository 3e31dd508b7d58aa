"""A training that ended worse than guessing. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MARGIN_NATS = 0.2
"""An untrained model is a little worse than a uniform guess: logits of variance s² cost s²/2 nats, 0.2 at the initial values of
C = 1024. What ends above that has learned something that is not so."""
BITS_PER_BYTE = 8.0


def diverged(record: Mapping[str, Any]) -> str | None:
    """Why the quality of a record is no result to be ranked, in a sentence that begins with 'diverged'; None where it is one.

    The bound is the loss of a uniform guess, ln V nats a token (``quality.uniform_loss_nats``), or 8 bits a byte.
    """
    quality = record.get("quality")
    if not isinstance(quality, Mapping):
        return None
    loss, uniform = _number(quality.get("val_loss_nats")), _number(quality.get("uniform_loss_nats"))
    bits = _number(quality.get("val_bits_per_byte"))
    if bits > BITS_PER_BYTE + MARGIN_NATS / math.log(2):
        return f"diverged: {bits:.3g} bits per byte at the end, where a uniform guess has 8"
    if loss > uniform + MARGIN_NATS:
        return f"diverged: validation loss {loss:.3g} nats at the end, where a uniform guess has {uniform:.3g}"
    return None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
