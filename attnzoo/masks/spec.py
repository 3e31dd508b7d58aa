"""The one definition of who may see whom. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnzoo.arguments import demand, fault, flag, tensor, whole
from attnzoo.arguments import device as check_device
from attnzoo.errors import RequestError

FIELDS = frozenset({"bidirectional", "window", "sinks", "prefix", "key_padding", "documents"})
"""What a mask can ask for beyond plain causality; a backend declares which of these it honours."""
MOST_MADE = 8
"""Things kept with a mask, such as block masks of other lengths."""
Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Mask:
    """Who may see whom. True means *may attend*; the fields intersect.

    Query row r has position i = r + Tk - Tq (the last query is aligned with the last key), key column j has position j.
    Query i may attend key j when every field allows it:

    - ``causal``: j ≤ i, or j < ``prefix`` (the prefix is open to every query). ``causal=False`` allows all pairs.
    - ``window=W``: i - W < j ≤ i, exactly W keys with the query's own; or j < ``sinks``. A window looks back only, so it
      bounds a prefix too: a prefix key ahead of the query, or further back than W, stays hidden.
    - ``key_padding`` (B, Tk) bool: True is a real token, False hides that key from everyone.
    - ``documents`` (B, T) integer ids, T = Tk: i and j carry the same id. Queries take the ids of their positions.

    ``sinks`` without a window and ``prefix`` without causality widen nothing and so change nothing.
    A row that sees no key gives exactly 0 with exactly 0 gradient, in every backend.
    A mask limits what one forward pass reads; it is not an access-control boundary.

    >>> print(Mask().grid(4))
    x . . .
    x x . .
    x x x .
    x x x x
    >>> print(Mask(window=2, sinks=1).grid(5))
    x . . . .
    x x . . .
    x x x . .
    x . x x .
    x . . x x
    >>> print(Mask(prefix=2).grid(4))
    x x . .
    x x . .
    x x x .
    x x x x
    >>> print(Mask(documents=torch.tensor([[0, 0, 1, 1]])).grid(4))
    x . . .
    x x . .
    . . x .
    . . x x
    >>> print(Mask().grid(2, 5))
    x x x x .
    x x x x x

    Raises:
        RequestError: window < 1, negative sinks or prefix, padding that is not a (B, Tk) bool tensor, documents that are not
            a (B, T) integer tensor, or a length that does not match the keys (on use).
    """

    causal: bool = True
    window: int | None = None
    sinks: int = 0
    prefix: int = 0
    key_padding: Tensor | None = field(default=None, repr=False)
    documents: Tensor | None = field(default=None, repr=False)
    fields: frozenset[str] = field(init=False, repr=False)
    """The fields that change anything, as names of `FIELDS`."""
    _made: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)
    """What `made` keeps, and under None the tensors' content at the time."""

    def __post_init__(self) -> None:
        demand(
            "this mask makes no sense",
            flag("causal", self.causal),
            whole(
                "window", self.window, 1, optional=True, hint="at least 1 key, the query's own; None means no window"
            ),
            whole("sinks", self.sinks, 0),
            whole("prefix", self.prefix, 0),
            _field(
                "key_padding", self.key_padding, "bool (B, Tk), True = a real token", lambda t: t.dtype == torch.bool
            ),
            _field("documents", self.documents, "of integer ids (B, T)", _integers),
        )
        asked = {
            "bidirectional": not self.causal,
            "window": self.window is not None,
            "sinks": self.sinks > 0 and self.window is not None,
            "prefix": self.prefix > 0 and self.causal,
            "key_padding": self.key_padding is not None,
            "documents": self.documents is not None,
        }
        object.__setattr__(self, "fields", frozenset(name for name, on in asked.items() if on))  # read in every layer

    @property
    def static(self) -> bool:
        """True when no field holds a tensor: the mask depends on positions alone."""
        return self.key_padding is None and self.documents is None

    @property
    def contiguous_documents(self) -> bool:
        """True when each document is one run of tokens; what a carried state needs. Costs one device synchronisation a mask,
        and another one when its ids have been refilled in place."""
        ids = self.documents
        return True if ids is None else self.made("contiguous", lambda: _contiguous(ids))

    def made(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """``make()``, kept with the mask for all layers: what a kernel needs of padding and documents.

        It is made again once they have been refilled in place, which a CPU tells by comparing and a device by torch's count of
        changes. Tensors of `torch.inference_mode` have no such count: on a device, what is made of them is never kept.
        """
        held = [t for t in (self.key_padding, self.documents) if t is not None]
        before = self._made.get(None)
        if before is None or not all(_as_it_was(t, content) for t, content in zip(held, before, strict=True)):
            self._made.clear()
            self._made[None] = [_content(t) for t in held]
        if key not in self._made:
            if len(self._made) > MOST_MADE:
                self._made.pop(next(k for k in self._made if k is not None))
            self._made[key] = make()
        return self._made[key]

    def at(self, i: Tensor, j: Tensor) -> Tensor:
        """Visibility of key positions ``j`` to query positions ``i``.

        Args:
            i, j: integer tensors of one broadcast shape S. Positions outside the sequence (negative, or T and beyond) see
                and show nothing where a tensor field has to be read.

        Returns:
            bool S when the mask is static, else (B, *S).
        """
        visible = torch.ones(torch.broadcast_shapes(i.shape, j.shape), dtype=torch.bool, device=i.device)
        if self.causal:
            visible = visible & ((j <= i) | (j < self.prefix))
        if self.window is not None:
            visible = visible & (((j > i - self.window) & (j <= i)) | (j < self.sinks))
        if self.key_padding is not None:
            visible = visible & _gather(self.key_padding, j, outside=False)
        if self.documents is not None:
            n_tokens = self.documents.shape[1]
            inside = (i >= 0) & (i < n_tokens) & (j >= 0) & (j < n_tokens)
            visible = visible & inside & (_gather(self.documents, i) == _gather(self.documents, j))
        return visible

    def dense(self, n_queries: int, n_keys: int, device: torch.device | str | None = None) -> Tensor:
        """The whole mask, bool (B or 1, 1, Tq, Tk). O(Tq·Tk): the oracle, and what kernels without a better way are given."""
        demand(
            "this mask cannot be written out",
            whole("n_queries", n_queries, 0),
            whole("n_keys", n_keys, 0),
            check_device("device", device, optional=True),
        )
        self.check_lengths(n_keys)
        device = device or self.device
        i = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
        visible = self.at(i, torch.arange(n_keys, device=device)[None, :])
        return visible[None, None] if visible.dim() == 2 else visible[:, None]

    def check_lengths(self, n_keys: int, batch: int | None = None) -> None:
        """Raise `RequestError` unless padding and documents are as long as the keys (and fit the batch)."""
        reasons = []
        for name in ("key_padding", "documents"):
            held = getattr(self, name)
            if held is None:
                continue
            if held.shape[1] != n_keys:
                reasons.append(f"{name} covers {held.shape[1]} tokens, but there are {n_keys} keys")
            if batch is not None and held.shape[0] not in (1, batch):
                reasons.append(f"{name} has {held.shape[0]} rows, but the batch has {batch}")
        if reasons:
            raise RequestError("the mask does not fit the tensors", reasons)

    @property
    def device(self) -> torch.device | None:
        """Where the tensor fields live; None when there are none."""
        held = self.key_padding if self.key_padding is not None else self.documents
        return None if held is None else held.device

    def grid(self, n_queries: int, n_keys: int | None = None) -> str:
        """A small picture of the first batch row: x may attend, . may not."""
        rows = self.dense(n_queries, n_keys or n_queries)[0, 0].tolist()
        return "\n".join(" ".join("x" if seen else "." for seen in row) for row in rows)


def _field(name: str, value: Tensor | None, expected: str, fits: Callable[[Tensor], bool]) -> list[str]:
    """What is wrong with a tensor field of two axes."""
    if reasons := tensor(name, value, expected, optional=True):
        return reasons
    return [] if value is None or (value.dim() == 2 and fits(value)) else fault(name, value, f"a tensor {expected}")


def _contiguous(ids: Tensor) -> bool:
    """Whether each row of ids (B, T) has as many runs as ids."""
    runs, ordered = ids[:, 1:] != ids[:, :-1], ids.sort(1).values
    return bool((runs.sum(1) == (ordered[:, 1:] != ordered[:, :-1]).sum(1)).all())


def _content(t: Tensor) -> Tensor | int | None:
    """What tells whether a tensor has been refilled: a copy on a CPU, where nothing else sees numpy write; torch's count of
    changes on a device, where comparing would wait for it."""
    if t.device.type == "cpu":
        return t.clone()
    return None if t.is_inference() else t._version


def _as_it_was(t: Tensor, content: Tensor | int | None) -> bool:
    return torch.equal(t, content) if isinstance(content, Tensor) else content is not None and content == _content(t)


def _integers(t: Tensor) -> bool:
    return not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool)


def _gather(values: Tensor, positions: Tensor, outside: bool | int = 0) -> Tensor:
    """values (B, T) read at positions S -> (B, *S); positions outside 0..T-1 give ``outside``."""
    inside = (positions >= 0) & (positions < values.shape[1])
    read = values[:, positions.clamp(0, values.shape[1] - 1)]
    return torch.where(inside, read, torch.full((), outside, dtype=values.dtype, device=values.device))
