"""What the rules that carry a state have in common: padding, documents, decoding. Shapes: see `attnzoo.shapes`.

A new rule writes `terms` (what its scan runs on) and `weights` (its definition). K and E are the widths of the state: K
is D, or the number of features; E is Dv, plus one where the values carry a column of ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.contract import Capabilities, Options, Request, ScoreBias
from attnzoo.errors import RequestError
from attnzoo.kernels import fla
from attnzoo.kernels.derivatives import plainly
from attnzoo.kernels.gates import wide
from attnzoo.kernels.library import WithLibraries
from attnzoo.kernels.optional import missing
from attnzoo.kernels.scan import chunk_for, scan
from attnzoo.masks import Mask
from attnzoo.masks.translate import document_starts, piece_bounds


class StateCache:
    """A state (B, G, K, E) that stands for all tokens seen so far; its size does not depend on their number."""

    def __init__(self, state: Tensor, max_tokens: int) -> None:
        self.state, self.max_tokens, self.length = state, max_tokens, 0

    @property
    def nbytes(self) -> int:
        return self.state.nbytes


FROM_QKV = Capabilities(
    masks=frozenset({"key_padding", "documents"}), bias=False, dropout=False, time=1.0, memory=1.0, state=0.0
)
"""Of a rule on q, k and v alone."""
FROM_X = Capabilities(
    masks=frozenset({"key_padding", "documents"}),
    bias=False,
    dropout=False,
    cross=False,
    needs_x=True,
    positions="none",
    time=1.0,
    memory=1.0,
    state=0.0,
)
"""Of a rule whose gates are computed from x: a gate for every key, so as many keys as queries, and no positions beside them."""


@dataclass(frozen=True)
class ChunkOptions(Options):
    """chunk: tokens computed together, a power of two; changes the speed, not the result beyond rounding."""

    chunk: int = 64

    def __post_init__(self) -> None:
        faults = self.faults()
        if faults:
            raise RequestError("these options make no sense", faults)

    def faults(self) -> list[str]:
        """What is wrong with the values; a subclass adds its own."""
        if self.chunk < 1 or self.chunk & (self.chunk - 1):
            return [f"chunk={self.chunk}: must be a power of two (1, 2, 4, …)"]
        return []


class Terms(NamedTuple):
    """What `scan` runs on, in float32 or float64: q (B,H,Tq,K), k (B,G,Tk,K), v (B,G,Tk,E), log decay, β."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor | None = None
    beta: Tensor | None = None


class Recurrent(WithLibraries):
    """A rule whose whole past is one state (B, G, K, E) in float32 (float64 for float64 input).

    A padded token neither decays nor writes the state; the first token of a document finds it empty.
    ``kernel`` is auto, chunked (`attnzoo.kernels.scan`) or fla (`attnzoo.kernels.fla`). auto is fla on a GPU where fla is
    installed and computes the same rule in the inputs' type, and chunked elsewhere.
    """

    kernels: ClassVar[tuple[str, ...]] = ("auto", "chunked", "fla")
    options: ChunkOptions
    ones = 0
    """Columns of ones beside the values: with 1 the outputs are divided by the sum of the weights."""

    def terms(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor | None) -> Terms:
        """The rule's scan, from q, k and v in its wide dtype and x as it comes."""
        raise NotImplementedError

    def finish(self, sums: Tensor, counts: Tensor) -> Tensor:
        """Sums (B, H, Tq, E) -> (B, H, Tq, Dv); counts (B or 1, Tq): real tokens of the document up to each query."""
        return ratio(sums) if self.ones else sums

    @property
    def state_width(self) -> int:
        """K."""
        return self.head_dim

    @classmethod
    def declared(cls, options: Options, device: str = "cpu") -> Capabilities:
        can = super().declared(options, device)
        by_fla = options.kernel == "auto" and device == "cuda" and "fla" in cls.kernels and not missing("fla", device)
        return replace(can, bitwise_prefix=False, compiles=False) if by_fla else can

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        if not request.contiguous_documents:
            yield f"{cls.name} carries a state from token to token: documents must be contiguous runs of one id"
        yield from super().refusals(request)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        return self._scan(q, k, v, mask, x, None)

    def attend_cached(self, q, k, v, cache, mask: Mask, bias, x) -> Tensor:
        return self._scan(q, k, v, mask, x, cache)

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None):
        shape = (batch_size, self.n_kv_heads, self.state_width, (value_dim or self.head_dim) + self.ones)
        return StateCache(torch.zeros(shape, device=device, dtype=wide(dtype or torch.get_default_dtype())), max_tokens)

    def cache_bytes(self, batch_size, max_tokens, dtype, value_dim=None) -> int:
        width = (value_dim or self.head_dim) + self.ones
        return batch_size * self.n_kv_heads * self.state_width * width * wide(dtype).itemsize

    def flops(self, n_queries: int, n_keys: int) -> float:
        e = self.head_dim + self.ones
        inside = n_keys * (chunk_for(self.options.chunk, n_keys) + 1) * (self.state_width + e)
        return self.n_heads * (inside + 4.0 * n_keys * self.state_width * e)

    def decode_flops(self, context: int) -> float:
        return self.flops(1, 1)

    def _scan(self, q, k, v, mask: Mask, x: Tensor | None, cache: StateCache | None) -> Tensor:
        """Outputs; the cache, if there is one, moves on. The mask covers the tokens of the cache as well."""
        seen, hidden, starts = 0 if cache is None else cache.length, None, None
        if mask.key_padding is not None:
            hidden = ~mask.key_padding[:, None, seen:, None]
        if mask.documents is not None:
            starts = document_starts(mask.documents)[:, seen:]
        w = wide(q.dtype)
        t = self.masked_terms(q.to(w), k.to(w), v.to(w), x, hidden, starts, cache)
        before = None if cache is None else cache.state
        rest: dict[str, Any] = {"decay": t.decay, "beta": t.beta, "starts": starts, "state": before}
        if self._by_fla(q, v, mask):
            rows, kept = k.shape[0], starts
            bounds = (
                None if kept is None else mask.made(("pieces", seen, rows), lambda: piece_bounds(kept.expand(rows, -1)))
            )
            sums, state, kernel = fla.scan(t.q, t.k, t.v, dtype=q.dtype, bounds=bounds, **rest)
        else:
            sums, state = scan(t.q, t.k, t.v, chunk=self.options.chunk, **rest)
            kernel = f"{self.name}/{'chunked' if cache is None or k.shape[2] > 1 else 'recurrent'}"
        self.ran(kernel)
        counts = token_counts(mask, q.shape[2], seen + k.shape[2], q.device)
        if cache is not None:
            cache.state, cache.length = state, seen + k.shape[2]
        return self.finish(sums, counts).to(q.dtype)

    def _by_fla(self, q: Tensor, v: Tensor, mask: Mask) -> bool:
        """Whether fla computes this. torch.compile and torch.func see through the chunks, and keep them under auto."""
        if self.options.kernel != "auto":
            return self.options.kernel == "fla"
        if not q.is_cuda or plainly():
            return False
        sizes = (self.n_heads, self.n_kv_heads, self.head_dim, v.shape[3])
        rule: Any = type(self)
        return _fla_takes(rule, self.options, sizes, q.dtype, mask.fields)

    def masked_terms(self, q, k, v, x, hidden: Tensor | None, starts: Tensor | None, cache) -> Terms:
        """`terms` with hidden keys (B, 1, Tk, 1) that do nothing; for a rule that keeps more than a state in its cache."""
        t = self.terms(q, k, v, x)
        if hidden is None:
            return t
        decay = None if t.decay is None else t.decay.masked_fill(hidden, 0.0)
        return t._replace(k=t.k.masked_fill(hidden, 0.0), decay=decay)


@lru_cache(maxsize=256)
def _fla_takes(
    rule: Any,
    options: Options,
    sizes: tuple[int, int, int, int],
    dtype: torch.dtype,
    fields: frozenset[str],
) -> bool:
    if "fla" not in rule.kernels:
        return False
    request = Request(*sizes, device="cuda", dtype=dtype, mask_fields=fields, options=replace(options, kernel="fla"))
    return not any(rule.refusals(request))


def ratio(sums: Tensor) -> Tensor:
    """(…, Dv + 1) sums of v and of weights, none negative -> (…, Dv); 0 where nothing was summed."""
    values, total = sums.split([sums.shape[-1] - 1, 1], -1)
    return values / total.masked_fill(
        total < 1e-30, 1.0
    )  # a smaller total's reciprocal would overflow in the backward pass


def token_counts(mask: Mask, n_queries: int, n_keys: int, device: torch.device) -> Tensor:
    """(B or 1, Tq): real tokens of a query's document up to and including it; 0 before the first key."""
    if mask.static:
        return torch.arange(n_keys - n_queries + 1, n_keys + 1, device=device).clamp(min=0)[None]
    real = mask.key_padding if mask.key_padding is not None else torch.ones(1, n_keys, dtype=torch.bool, device=device)
    counts = real.long().cumsum(1)
    if mask.documents is not None:
        counts = counts - ((counts - real.long()) * document_starts(mask.documents)).cummax(1).values
    return F.pad(counts, (n_queries - n_keys, 0))


def decay_between(decay: Tensor, visible: Tensor) -> Tensor:
    """For definitions: Π_{j<t≤i} a_t over the tokens that query i sees; log decay (B or 1, H, Tk, n) -> (B, H, Tq, Tk, n)."""
    seen = torch.where(visible[..., None], decay[:, :, None], 0.0)  # (B, H, Tq, Tk, n)
    return F.pad(seen[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2).exp()
