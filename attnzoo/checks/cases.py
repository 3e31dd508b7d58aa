"""Inputs of the checks: sizes, a mask that can be rebuilt at any size, seeded tensors, and smaller versions of a case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attnzoo.contract import ScoreBias
from attnzoo.masks import Mask

TILE_EDGES = (64, 129, 192, 257, 320)
"""Lengths that fill, pass and half fill the tiles of 64 and 128 rows that GPU kernels work in."""


@dataclass(frozen=True)
class MaskPlan:
    """A `Mask` without its tensors, so that it exists at every size.

    Args:
        causal, window, sinks, prefix: as in `Mask`.
        padding: right, left (one key more in each further batch row), deep (the left half), holes (every third key), or all
            (row 0 sees no key).
        documents: runs (three runs), many (runs of two tokens, ids of either sign), or mixed (two, token by token).
        shared: padding and documents are given once, (1, Tk), for all batch rows.
    """

    causal: bool = True
    window: int | None = None
    sinks: int = 0
    prefix: int = 0
    padding: str | None = None
    documents: str | None = None
    shared: bool = False

    def build(self, batch: int, n_keys: int, device: torch.device | str = "cpu") -> Mask:
        batch = 1 if self.shared else batch
        j = torch.arange(n_keys, device=device).expand(batch, -1)
        row = torch.arange(batch, device=device)[:, None]
        hidden = (row + 1).clamp(max=n_keys)  # tokens hidden in each row; a short row may be hidden whole
        padding = documents = None
        if self.padding is not None:
            padding = {
                "right": j < n_keys - hidden,
                "left": j >= hidden,
                "deep": j >= (n_keys + row) // 2,
                "holes": (j + row) % 3 != 1,
                "all": (row > 0) & (j >= 0),
            }[self.padding]
        if self.documents is not None:
            documents = {
                "runs": (3 * j + row).div(n_keys, rounding_mode="floor"),
                "many": 5 - 3 * ((j + row) // 2),
                "mixed": (j + row) % 2,
            }[self.documents]
        return Mask(self.causal, self.window, self.sinks, self.prefix, padding, documents)

    def __str__(self) -> str:
        parts = [] if self.causal else ["causal=False"]
        parts += [
            f"{name}={getattr(self, name)}"
            for name in ("window", "sinks", "prefix", "padding", "documents", "shared")
            if getattr(self, name)
        ]
        return f"Mask({', '.join(parts)})"

    def simpler(self) -> Iterator[MaskPlan]:
        """The same plan with one field less."""
        for name, off in (
            ("shared", False),
            ("documents", None),
            ("padding", None),
            ("prefix", 0),
            ("sinks", 0),
            ("window", None),
            ("causal", True),
        ):
            if getattr(self, name) != off:
                yield replace(self, **{name: off})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Case:
    """One input. ``options`` is own (as given), small (block and window sizes shrunk: short inputs cross many edges), or a name
    in `Subject.others`."""

    heads: int = 2
    kv_heads: int = 2
    dim: int = 8
    value_dim: int | None = None
    batch: int = 2
    n_queries: int = 5
    n_keys: int = 5
    mask: MaskPlan = MaskPlan()
    bias: bool = False
    bias_gradient: bool = False
    dropout: float = 0.0
    scale: float | None = None
    dtype: torch.dtype = torch.float32
    options: str = "small"
    kernel: str | None = None
    kind: str = "normal"
    seed: int = 0

    def __str__(self) -> str:
        parts = [
            f"B={self.batch}",
            f"H={self.heads}",
            f"G={self.kv_heads}",
            f"Tq={self.n_queries}",
            f"Tk={self.n_keys}",
            f"D={self.dim}",
        ]
        parts += [f"Dv={self.value_dim}"] if self.value_dim else []
        parts += [str(self.dtype).removeprefix("torch."), str(self.mask)]
        parts += [
            f"{self.options} options",
            *(["score bias"] if self.bias else []),
            *([f"kernel={self.kernel}"] if self.kernel else []),
        ]
        parts += [f"{name}={value}" for name in ("dropout", "scale") if (value := getattr(self, name))]
        return " ".join(parts + ([f"inputs: {self.kind}"] if self.kind != "normal" else []))

    def smaller(self) -> Iterator[Case]:
        """Neighbours that are smaller in one respect, the boldest first."""
        gap = self.n_keys - self.n_queries
        if gap == 0:
            for n in dict.fromkeys((1, 2, 3, self.n_keys // 2, self.n_keys - 2, self.n_keys - 1)):
                if 0 < n < self.n_keys:
                    yield replace(self, n_queries=n, n_keys=n)
        else:
            yield replace(self, n_queries=self.n_keys)
            for n in (self.n_keys // 2, self.n_keys - 1):
                if n > 0 and n - gap > 0:
                    yield replace(self, n_queries=n - gap, n_keys=n)
            if self.n_queries > 1:
                yield replace(self, n_queries=self.n_queries // 2)
        if self.batch > 1:
            yield replace(self, batch=1)
        if self.heads > 1:
            yield replace(self, heads=1, kv_heads=1)
            if self.kv_heads > 1:
                yield replace(self, heads=self.heads // self.kv_heads, kv_heads=1)
        for mask in self.mask.simpler():
            yield replace(self, mask=mask)
        if self.value_dim:
            yield replace(self, value_dim=None)
        if self.scale:
            yield replace(self, scale=None)
        for dim in dict.fromkeys((1, self.dim // 2)):
            if 0 < dim < self.dim:
                yield replace(self, dim=dim)
        if self.bias:
            yield replace(self, bias=False, bias_gradient=False)


@dataclass
class Inputs:
    """The tensors of a case: q (B,H,Tq,D), k (B,G,Tk,D), v (B,G,Tk,Dv), x (B,Tq,C) or None, the mask and the score bias."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    bias: ScoreBias | None
    x: Tensor | None

    def __iter__(self) -> Iterator:
        return iter((self.q, self.k, self.v, self.mask, self.bias, self.x))

    def tensors(self) -> dict[str, Tensor]:
        held = {"q": self.q, "k": self.k, "v": self.v, "x": self.x}
        return {name: t for name, t in held.items() if t is not None}

    def map(self, function) -> Inputs:
        """The same with ``function`` applied to q, k, v and x."""
        q, k, v = function(self.q), function(self.k), function(self.v)
        return Inputs(q, k, v, self.mask, self.bias, None if self.x is None else function(self.x))

    def double(self) -> Inputs:
        return self.map(lambda t: t.detach().double())

    def leaves(self) -> Inputs:
        """Copies that record gradients."""
        return self.map(lambda t: t.detach().clone().requires_grad_())


class DistanceBias(ScoreBias):
    """A score bias that depends on the distance, on the absolute key position and on the head, so that no shift goes unseen."""

    def __init__(self, heads: int, learned: bool = False) -> None:
        super().__init__()
        slopes = 0.3 / (1.0 + torch.arange(heads))
        self.slopes = nn.Parameter(slopes) if learned else nn.Buffer(slopes)

    def block(self, i: Tensor, j: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(i.shape, j.shape)
        distance = (-(i - j).abs() + (j % 7) * 0.5).to(self.slopes.dtype).expand(shape)
        return self.slopes.view(-1, *(1 for _ in shape)) * distance


def make_inputs(case: Case, device: str, d_model: int | None) -> Inputs:
    """Seeded tensors; drawn in float64, so that every dtype rounds the same numbers."""
    generator = torch.Generator().manual_seed(1000 + case.seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, case.dtype)

    q = draw(case.batch, case.heads, case.n_queries, case.dim)
    k = draw(case.batch, case.kv_heads, case.n_keys, case.dim)
    v = draw(case.batch, case.kv_heads, case.n_keys, case.value_dim or case.dim)
    x = draw(case.batch, case.n_queries, d_model) if d_model else None
    bias = DistanceBias(case.heads, case.bias_gradient).to(device) if case.bias else None
    return Inputs(q, k, v, case.mask.build(case.batch, case.n_keys, device), bias, x)
