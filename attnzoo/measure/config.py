"""Settings of what is measured. No torch here: the command line reads this to answer ``--help``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass
class MeasureConfig:
    """What is measured beside the loss. Options of the metrics are further keys of this group.

    Args:
        metrics: scored on the validation split beside the loss, perplexity, bits per byte and accuracy.
        enabled: off leaves cost out of the record.
        timing: time the train step, prefill and decoding; a comparison does it afterwards, all cells taking turns.
        leak: run the leak tests on the trained model.
        rounds: at most this many rounds of timing, each contestant once a round; seconds: the time limit of all rounds.
        decode_context: tokens of the prefill, and in the cache in the middle of the timed calls.
        decode_tokens: tokens of a timed call.
        lengths: of a comparison's training steps over length, one sequence each; [] for none. They take at most
            ``seconds`` more.
        memory: peak memory of a training step, in a process of its own.
    """

    chosen: ClassVar[dict[str, str]] = {"metrics": "metric"}

    metrics: list[str] = field(default_factory=list)
    enabled: bool = True
    timing: bool = True
    leak: bool = True
    rounds: int = 15
    seconds: float = 30.0
    decode_context: int = 128
    decode_tokens: int = 16
    lengths: list[int] = field(default_factory=lambda: [256, 512, 1024, 2048])
    memory: bool = True
    options: dict[str, Any] = field(default_factory=dict)
