"""Softmax attention over the first tokens and the last W."""

from __future__ import annotations

from dataclasses import dataclass

from attnzoo.contract import Capabilities, Options
from attnzoo.errors import RequestError
from attnzoo.kernels.window import WindowAttention
from attnzoo.registry import register


@dataclass(frozen=True)
class StreamingOptions(Options):
    """sinks: s, first tokens that every later one sees; window: W, the last keys, the query's own included."""

    sinks: int = 4
    window: int = 64

    def __post_init__(self) -> None:
        faults = [] if self.window >= 1 else [f"window={self.window}: at least 1 key, the query's own"]
        faults += [] if self.sinks >= 0 else [f"sinks={self.sinks}: at least 0"]
        if faults:
            raise RequestError("streaming cannot take these options", faults)


@register("streaming")
class Streaming(WindowAttention):
    """Softmax attention over the first s tokens (attention sinks) and the last W: j ≤ i and (j < s or i - W < j).

    Cost: time and memory O(T·(W + s)), in blocks; the blocks that hold the sinks are read whole.
    State: 2·(s + W)·G·D, whatever T: the sinks in slots of their own, the others in a ring of W.
    Departures: positions are those of the text, where the paper counts positions inside the cache once tokens have been
    dropped; sinks are the first slots of the sequence (left padding shifts them, packed documents after the first have
    none); the model is trained with its window, where the paper applies it to a trained model.
    Use: to decode without end in constant memory; what has left the window is forgotten.
    """

    Options = StreamingOptions
    source = "arXiv:2309.17453"
    capabilities = Capabilities(time=1.0, memory=1.0, state=0.0, shift_invariant=False, products=True)
    options: StreamingOptions

    @property
    def window(self) -> int:
        return self.options.window

    @property
    def sinks(self) -> int:
        return self.options.sinks
