"""Where things are: position schemes. A causal mask says what may be seen; neither replaces the other.

A scheme acts at one of three places: on the embeddings (learned, sinusoidal), on queries and keys (rope), or on the scores
(alibi, relative). Position numbers are integers and phases float32, whatever the model's dtype: in bfloat16, 256 and 257 are
one number. Shapes: see `attnzoo.shapes`; P is (B or 1, T), the position of each token.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.contract import ScoreBias
from attnzoo.errors import RequestError, unknown
from attnzoo.kernels.constants import constant
from attnzoo.kernels.derivatives import plainly


class Positions(nn.Module):
    """No positions (NoPE, arXiv:2305.19466), and the interface of all others. ``longest``: tokens it has positions for."""

    needs_bias = False
    longest: int | None = None

    def embed(self, h: Tensor, positions: Tensor, end: int | None = None) -> Tensor:
        """Embeddings (B, T, C) with positions added; every position is below ``end``, where the caller knows."""
        return h

    def phases(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """What `rotate` needs, computed once a forward pass and shared by all layers."""
        return None

    def bias(self) -> ScoreBias | None:
        """The score bias, for schemes that have one."""
        return None


class Learned(Positions):
    """A learned vector for each absolute position below ``max_tokens``."""

    def __init__(self, d_model: int, max_tokens: int) -> None:
        super().__init__()
        self.table, self.longest = nn.Embedding(max_tokens, d_model), max_tokens

    def embed(self, h: Tensor, positions: Tensor, end: int | None = None) -> Tensor:
        n_rows = self.table.num_embeddings
        unknown = positions.numel() and not torch.compiler.is_compiling() and (end is None or end > n_rows)
        if unknown and int(positions.max()) >= n_rows:  # reading it waits for the device
            raise RequestError(
                f"position {int(positions.max())} is past the learned table of {n_rows}: raise positions.max_tokens, "
                "or take rope, alibi, sinusoidal or none"
            )
        return h + self.table(positions)


class Sinusoidal(Positions):
    """Fixed sines and cosines of geometric wavelengths (arXiv:1706.03762, section 3.5).

    Departure: scaled to the root mean square of a fresh embedding instead of scaling the embedding up.
    """

    def __init__(self, d_model: int, base: float, rms: float = 0.02) -> None:
        super().__init__()
        self.d_model, self.base, self.rms = d_model, base, rms

    def embed(self, h: Tensor, positions: Tensor, end: int | None = None) -> Tensor:
        angle = _angles(positions, self.d_model, self.base)
        waves = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., : self.d_model]
        return h + (waves * self.rms * math.sqrt(2)).to(h.dtype)


class Rope(Positions):
    """Rotary positions (arXiv:2104.09864): q·k depends on content and on the difference of positions.

    Channel c is paired with channel c + D/2, the layout of Llama checkpoints.
    """

    def __init__(self, head_dim: int, base: float) -> None:
        super().__init__()
        if head_dim % 2:
            raise RequestError(f"rope turns pairs of channels: head_dim {head_dim} must be even")
        self.head_dim, self.base = head_dim, base

    def phases(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angle = _angles(positions, self.head_dim, self.base)[:, None]  # (B or 1, 1, T, D/2)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


class Alibi(Positions):
    """A penalty on the scores that grows linearly with distance (arXiv:2108.12409)."""

    needs_bias = True

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.score_bias = AlibiBias(n_heads)

    def bias(self) -> ScoreBias:
        return self.score_bias


class AlibiBias(ScoreBias):
    """-slope_h · |i - j|."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.alibi_slopes = self.slopes = tuple(
            alibi_slopes(n_heads)
        )  # plain numbers: no cast of the module can round them

    def block(self, i: Tensor, j: Tensor) -> Tensor:
        distance = (i - j).abs().float()
        slopes = constant(self.slopes, distance.device)
        return -slopes.view(-1, *[1] * distance.dim()) * distance

    def by_head(self, device):
        slopes = constant(self.slopes, device)
        return lambda i, j, h: -slopes[h] * (i - j).abs().float()


class Relative(Positions):
    """A learned number on the scores for each head and bucket of distances (T5, arXiv:1910.10683), shared by all layers."""

    needs_bias = True

    def __init__(self, n_heads: int, buckets: int, max_distance: int) -> None:
        super().__init__()
        self.score_bias = RelativeBias(n_heads, buckets, max_distance)

    def bias(self) -> ScoreBias:
        return self.score_bias


class RelativeBias(ScoreBias):
    """``table[bucket of i - j, h]``; keys ahead of the query, which a causal mask hides, are in the bucket of distance 0."""

    def __init__(self, n_heads: int, buckets: int, max_distance: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(buckets, n_heads))
        self.bucket = nn.Buffer(
            distance_buckets(buckets, max_distance), persistent=False
        )  # of distances 0 … max_distance

    def block(self, i: Tensor, j: Tensor) -> Tensor:
        distance = (i - j).clamp(0, len(self.bucket) - 1)
        return F.embedding(self.bucket[distance], self.table).movedim(-1, 0)

    def by_head(self, device):
        bucket, table, furthest = self.bucket, self.table, len(self.bucket) - 1
        return lambda i, j, h: table[bucket[(i - j).clamp(0, furthest)], h]


def distance_buckets(buckets: int, max_distance: int) -> Tensor:
    """(max_distance + 1,): the bucket of each distance. The first half of the buckets holds one distance each, the others
    stretches that grow geometrically; the last also takes everything beyond.

    >>> distance_buckets(8, 16).tolist()
    [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7]
    """
    exact = buckets // 2
    growth = max_distance / exact
    # an integer distance on an edge belongs above it, whatever the power rounds to
    edges = [math.ceil(exact * growth ** (n / (buckets - exact)) - 1e-9) for n in range(1, buckets - exact)]
    distance = torch.arange(max_distance + 1)
    beyond = exact + torch.bucketize(distance, torch.tensor(edges, dtype=torch.long), right=True)
    return torch.where(distance < exact, distance, beyond)


def rotate(t: Tensor, phases: tuple[Tensor, Tensor] | None) -> Tensor:
    """Turn queries or keys (B, H, T, D) by their phases (B or 1, 1, T, D), in float32; unchanged without phases.

    Phases are the cosine of each channel and the sine, negative in the first half: t · cos + (its halves swapped) · sin.
    """
    if phases is None:
        return t
    if t.requires_grad and torch.is_grad_enabled() and not plainly():
        return _Rotation.apply(t, *phases)
    cos, sin = phases
    return _turned(t, cos, sin, 1)


class _Rotation(torch.autograd.Function):
    """Its derivative is the rotation back: neither t nor any product need be kept."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(t, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(gradient, cos, sin, -1), None, None


def _turned(t: Tensor, cos: Tensor, sin: Tensor, direction: int) -> Tensor:
    wide = t.float() if t.dtype.itemsize == 2 else t
    return torch.addcmul(wide * cos, wide.roll(t.shape[-1] // 2, -1), sin, value=direction).to(t.dtype)


def alibi_slopes(n_heads: int) -> list[float]:
    """The paper's slopes: a geometric series for powers of two; else that of the power below, then every other one of the
    next power's series.

    >>> alibi_slopes(6)
    [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    """
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    if power < n_heads:
        slopes += [2 ** (-8 * (h + 1) / (2 * power)) for h in range(2 * power)][::2][: n_heads - power]
    return slopes


def _angles(positions: Tensor, width: int, base: float) -> Tensor:
    """positions (B or 1, T) -> (B or 1, T, ceil(width/2)) in float32, wavelengths from 2π to base·2π."""
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    return positions.float()[..., None] * base**-exponents


_SCHEMES: dict[str, Callable[..., Positions]] = {
    "none": lambda **_: Positions(),
    "learned": lambda d_model, max_tokens, **_: Learned(d_model, max_tokens),
    "sinusoidal": lambda d_model, base, **_: Sinusoidal(d_model, base),
    "rope": lambda head_dim, base, **_: Rope(head_dim, base),
    "alibi": lambda n_heads, **_: Alibi(n_heads),
    "relative": lambda n_heads, buckets, max_distance, **_: Relative(n_heads, buckets, max_distance),
}
POSITIONS = tuple(_SCHEMES)


def build_positions(
    name: str,
    *,
    d_model: int,
    n_heads: int,
    head_dim: int,
    base: float = 10000.0,
    max_tokens: int = 2048,
    buckets: int = 32,
    max_distance: int = 128,
) -> Positions:
    """A scheme by name.

    Raises:
        RequestError: an unknown name, with the nearest one; rope with an odd head dim.
    """
    if name not in _SCHEMES:
        raise RequestError(unknown("positions", name, _SCHEMES))
    return _SCHEMES[name](
        d_model=d_model, n_heads=n_heads, head_dim=head_dim, base=base, max_tokens=max_tokens,
        buckets=buckets, max_distance=max_distance,
    )  # fmt: skip
