"""What a backend can honour, and what it is asked. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from attnzoo.arguments import demand, fault, flag, instance, number, text
from attnzoo.errors import unknown
from attnzoo.masks import FIELDS
from attnzoo.options import Options

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Capabilities:
    """What a backend can honour; everything not declared here is refused, with the reason.

    Args:
        masks: the fields of `Mask` (see `attnzoo.masks.FIELDS`) beyond causality.
        grouped_heads: takes G < H.
        bias: takes a `ScoreBias`.
        dropout: drops attention weights in training.
        cross: takes Tq ≠ Tk.
        value_dim: takes Dv ≠ D.
        weighted_sum: the output is A V, one weight for each head, query and key. A rule that takes a maximum, gates or norms
            single channels, or adds what is no value has weights for the eye only: they are not read out, nor dropped.
        heads_apart: a query head reads no other's queries and no keys and values but its own group's. Talking heads mix them.
        scale: multiplies scores by its ``scale``.
        products: weights depend on queries and keys through scale·q·k alone, whatever basis the two are in: a query a times as
            long is a scale a times as large, which log_n needs, and keys may stay in mla's latent space.
        needs_x: its rule reads the layer's input x.
        positions: what ``positions=auto`` gives it: rope, or none where its publication turns neither queries nor keys because
            the rule itself (gates, a decay, a state) tells order.
        dtypes, devices: what it computes on; training_devices: where it has a backward.
        time, memory, state: declared growth exponents in T of a training step's time and memory and of the decoding state.
        shift_invariant: who may see whom depends on i - j alone, so that left padding changes nothing; block layouts that
            count from the first slot are not.
        compiles: under torch.compile a training step gives the same numbers; where it is not known, ``trainer.compile=auto``
            stays eager.
        bitwise_prefix: changing the future leaves earlier outputs bitwise equal (False: equal within rounding).
    """

    masks: frozenset[str] = FIELDS
    grouped_heads: bool = True
    bias: bool = True
    dropout: bool = True
    cross: bool = True
    value_dim: bool = True
    weighted_sum: bool = True
    heads_apart: bool = True
    scale: bool = True
    products: bool = False
    needs_x: bool = False
    positions: str = "rope"
    dtypes: tuple[torch.dtype, ...] = FLOATS
    devices: tuple[str, ...] = ("cpu", "cuda")
    training_devices: tuple[str, ...] = ("cpu", "cuda")
    time: float = 2.0
    memory: float = 2.0
    state: float = 1.0
    shift_invariant: bool = True
    bitwise_prefix: bool = True
    compiles: bool = True

    def __post_init__(self) -> None:
        flags = [f.name for f in fields(self) if f.type == "bool"]
        kinds = ("cpu", "cuda")
        demand(
            "these capabilities make no sense",
            instance("masks", self.masks, (frozenset, set), "a frozenset of mask fields")
            or [
                unknown("mask field", str(each), FIELDS) for each in sorted(map(str, self.masks)) if each not in FIELDS
            ],
            text("positions", self.positions, ("rope", "none")),
            *(flag(name, getattr(self, name)) for name in flags),
            *(number(name, getattr(self, name), lambda x: x >= 0, "0 or more") for name in ("time", "memory", "state")),
            _tuple_of("dtypes", self.dtypes, lambda each: isinstance(each, torch.dtype), "torch dtypes"),
            *(
                _tuple_of(name, getattr(self, name), lambda each: each in kinds, f"devices ({', '.join(kinds)})")
                for name in ("devices", "training_devices")
            ),
        )


def _tuple_of(name: str, value: Any, right: Callable[[Any], bool], expected: str) -> list[str]:
    return [] if isinstance(value, tuple) and all(map(right, value)) else fault(name, value, f"a tuple of {expected}")


@dataclass(frozen=True)
class Request:
    """One question to a backend: can you compute this? Everything a refusal may depend on; ``alibi``: the bias is ALiBi's."""

    n_heads: int = 8
    n_kv_heads: int = 8
    head_dim: int = 64
    value_dim: int | None = None
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    mask_fields: frozenset[str] = frozenset()
    contiguous_documents: bool = True
    cross: bool = False
    bias: bool = False
    bias_gradient: bool = False
    dropout: float = 0.0
    training: bool = True
    alibi: bool = False
    options: Options = field(default_factory=Options)
