"""How time, memory and decoding state grow with T, from counts of operations and live bytes: no clock."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from attnzoo.checks.cases import Case
from attnzoo.checks.compare import Failed
from attnzoo.checks.judge import each
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject, one_head
from attnzoo.checks.suite import conformance_check

ABOVE, BELOW = 0.25, 0.4
"""How far a fitted exponent may lie from the declared one: lower-order terms at the lengths that are tried flatten it."""


class CountingMode(TorchDispatchMode):
    """Counts what runs inside: ``work`` (operations of products, elements written by all else) and ``peak`` bytes alive."""

    def __init__(self) -> None:
        super().__init__()
        self.work, self.peak, self._live = 0.0, 0, 0
        self._known: dict[int, weakref.finalize] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        self.work += sum(t.numel() for t in tensors) + self._products(func, args, kwargs or {}, out)
        for t in tensors:
            self._follow(t)
        return out

    def _products(self, func, args, kwargs, out) -> float:
        name = func.name()
        if "scaled_dot_product" in name:  # forward (q, k, v, …) and backward (grad, q, k, v, …)
            q, k, v = args[1:4] if "backward" in name else args[:3]
            pairs = math.prod(q.shape[:3]) * k.shape[2]
            return 2.0 * pairs * (q.shape[3] + v.shape[3]) * (2.5 if "backward" in name else 1)
        count = flop_registry.get(func._overloadpacket)
        return float(count(*args, **kwargs, out_val=out)) if count else 0.0

    def _follow(self, t: Tensor) -> None:
        storage = t.untyped_storage()
        key = storage._cdata
        if key not in self._known:
            size = storage.nbytes()
            self._live += size
            self.peak = max(self.peak, self._live)
            self._known[key] = weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._live -= size
        self._known.pop(key, None)


def _lengths(subject: Subject) -> tuple[int, int, int]:
    """Three lengths, each twice the one before, well above the backend's own blocks and windows."""
    first = max(256, min(4 * max(subject.edges, default=0), 1024))
    return first, 2 * first, 4 * first


def exponent(counts: list[float]) -> float:
    """Growth exponent over the last doubling."""
    return math.log2(counts[-1] / counts[-2])


def _hidden(counts: list[float], declared: float) -> float:
    """Growth exponent of what remains without a term of one order less than declared, which may hide the largest."""
    first, second = (after - 2 ** (declared - 1) * before for before, after in pairwise(counts))
    return math.log2(second / first) if min(first, second) > 1e-3 * counts[0] else -math.inf


@conformance_check()
def growth(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Operations and peak live bytes of a training step grow with T as declared: no faster, and not slower."""
    longest = _lengths(subject)[-1]
    case = replace(one_head(subject), batch=1, n_queries=longest, n_keys=longest, options="own")
    yield from each(subject, name, [case], _grows, training=True, shrink=False)


def _grows(subject: Subject, case: Case) -> None:
    module, work, memory = subject.build(case), [], []
    for n in _lengths(subject):
        inputs = subject.inputs(replace(case, n_queries=n, n_keys=n)).leaves()
        with CountingMode() as counting:
            module(*inputs).sum().backward()
        work.append(counting.work)
        memory.append(float(counting.peak))
        del inputs
    for what, counts, declared in (("operations", work, subject.can.time), ("peak bytes", memory, subject.can.memory)):
        _expect_exponent(what, counts, declared, _lengths(subject))


@conformance_check(quick=True)
def state_growth(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """The decoding state grows with the number of tokens as declared (state): no faster, and not slower."""
    yield from each(subject, name, [replace(subject.base, batch=1, options="own")], _state, shrink=False)


def _state(subject: Subject, case: Case) -> None:
    module = subject.build(case)
    lengths = tuple(4 * n for n in _lengths(subject))
    sizes = [float(module.new_cache(1, n, device=subject.device, dtype=case.dtype).nbytes) for n in lengths]
    _expect_exponent("cache bytes", sizes, subject.can.state, lengths)


def _expect_exponent(what: str, counts: list[float], declared: float, lengths: tuple[int, ...]) -> None:
    found = exponent(counts)
    if found > declared + ABOVE or max(found, _hidden(counts, declared)) < declared - BELOW:
        series = ", ".join(f"T={n}: {c:.4g}" for n, c in zip(lengths, counts, strict=True))
        raise Failed(f"{what} that grow as T^{declared:g}", f"T^{found:.2f}", what, series)
