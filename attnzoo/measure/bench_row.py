"""One row of a benchmark: its setting, its work, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from attnzoo import registry
from attnzoo.measure.environment import environment
from attnzoo.measure.latency import Contestant, Timing
from attnzoo.measure.memory import CPU_METHOD, CUDA_METHOD
from attnzoo.measure.roofline import reach


@dataclass(frozen=True)
class Setting:
    """What all rows of one benchmark share; see `bench`."""

    batch_size: int
    n_heads: int
    n_kv_heads: int | None
    head_dim: int
    dtype: torch.dtype
    device: str
    n_layers: int
    decode_tokens: int
    seed: int
    options: Mapping[str, dict] = field(default_factory=dict)
    vocab_size: int = 256


@dataclass
class Work:
    """One piece of work of one backend at one length.

    Args:
        contestant: what is timed.
        flops, bytes: by formula; bytes 0 where there is none.
        kernel: names what ran, asked after it ran.
        extra: further columns of the row.
    """

    contestant: Contestant
    n_kv_heads: int
    flops: float = 0.0
    bytes: float = 0.0
    kernel: Callable[[], str | None] = lambda: None
    extra: dict[str, Any] = field(default_factory=dict)

    def ready(self) -> None:
        """Back to the starting point of a call."""
        if self.contestant.prepare is not None:
            self.contestant.prepare()


class Key(NamedTuple):
    """One contestant: a backend at one length, as it is or compiled."""

    name: str
    n_tokens: int
    compiled: bool = False

    def at(self, name: str) -> Key:
        """Another backend at the same length, not compiled."""
        return Key(name, self.n_tokens)

    def __str__(self) -> str:
        return f"{self.name}, compiled" if self.compiled else self.name


def row_of(key: Key, place: dict, setting: Setting, work: Work | None, timing: Timing, rates: dict) -> dict[str, Any]:
    """The row: shape, timing with its samples, operations and bytes by formula, status."""
    row = {
        "backend": str(key),
        **place,
        "T": key.n_tokens,
        "B": setting.batch_size,
        "H": setting.n_heads,
        "G": kv_heads(key.name, setting) if work is None else work.n_kv_heads,
        "D": setting.head_dim,
        "n_kv_heads": setting.n_kv_heads,
        "dtype": str(setting.dtype).removeprefix("torch."),
        "timing": None,
        "flops": None,
        "bytes": None,
        "peak_memory_bytes": None,
        "kernel": None,
        "status": timing.status,
        "reasons": timing.reasons,
    }
    if work is None or timing.status != "ok":
        return row
    shown = timing.to_dict() | {"samples": timing.samples}
    if shown["ratio"]:
        shown["ratio"]["to"] = str(timing.to)
    row |= {"timing": shown, "flops": work.flops, "bytes": work.bytes or None, "kernel": work.kernel()}
    row |= reach(work.flops, work.bytes, timing.interval.median if timing.interval else None, rates) | work.extra
    if key.compiled and timing.interval and timing.first_ms:
        row["compile_s"] = max(timing.first_ms - timing.interval.median * work.contestant.units, 0.0) / 1000
    return row


def kv_heads(name: str, setting: Setting) -> int:
    """G as asked for, or the backend's own."""
    own = setting.n_kv_heads
    return registry.get(name).default_kv_heads(setting.n_heads) if own is None else own


def machine(device: str, dtype: torch.dtype, rates: dict[str, float]) -> dict[str, Any]:
    """Where and with what a benchmark ran, and the rates its rows are held against."""
    around = environment(device)
    keep: tuple[str, ...] = (
        "attnzoo",
        "python",
        "torch",
        "os",
        "device",
        "device_name",
        "cpu",
        "threads",
        "git_commit",
        "git_dirty",
    )
    method = CUDA_METHOD if torch.device(device).type == "cuda" else CPU_METHOD
    keep += ("gpu", "triton", "xformers", "flash-attn", "flash-linear-attention") if around["gpu"] else ()
    shown = {key: around[key] for key in (*keep, "command", "start")}
    return {**shown, "dtype": str(dtype).removeprefix("torch."), **rates, "memory_method": method}
