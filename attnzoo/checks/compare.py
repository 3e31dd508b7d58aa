"""How equal is equal: bitwise, or within a small multiple of what plain arithmetic of that precision loses on the same input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnzoo.checks.report import REFUSED, SKIPPED

MULTIPLE = 4.0
"""Allowed error as a multiple of the plain computation's: another order of summation changes it by a factor, not by an order."""
CAP = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.15, torch.float16: 0.05}
"""Largest error allowed whatever the plain computation does, relative to the largest expected value."""
FINEST = 1e-13
"""Relative rounding below which nothing is looked for: float64 has no wider type to tell what plain arithmetic loses of it,
and a computation that is float32 somewhere inside is off by 1e-8."""


class Failed(Exception):
    """A property does not hold: what was expected, what was found, and where."""

    def __init__(self, expected: str, actual: str, where: str = "", detail: str = "") -> None:
        super().__init__(f"expected {expected}, got {actual} {where} {detail}")
        self.expected, self.actual, self.where, self.detail = expected, actual, where, detail


class Skip(Exception):
    """The property cannot be tried here; the message says why."""

    status = SKIPPED


class Declined(Skip):
    """What was asked for does not exist and was refused in so many words; the message holds them."""

    status = REFUSED


DRAWS = frozenset(
    (torch.rand, torch.randn, torch.normal, torch.rand_like, torch.randn_like, torch.bernoulli, torch.multinomial)
)
"""Drawn in another type, or from other probabilities, these numbers would be others."""


class InPrecision(TorchFunctionMode):
    """Runs float64 code in another precision: the plain low-precision computation of a definition. What it draws is drawn as
    before, and rounded."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        lower = lambda value: self.dtype if value is torch.float64 else value  # noqa: E731
        if func is Tensor.double:
            return args[0].to(self.dtype)
        if func in DRAWS:
            drawn = func(*args, **(kwargs or {}))
            return drawn.to(self.dtype) if drawn.dtype is torch.float64 else drawn
        return func(*(lower(a) for a in args), **{name: lower(value) for name, value in (kwargs or {}).items()})


def expect_close(
    actual: Tensor,
    exact: Tensor,
    plain: Tensor | None,
    what: str,
    multiple: float = MULTIPLE,
    scale: float = 0.0,
    moved: Callable[[], float] = lambda: 0.0,
    cancelling: float = 0.0,
) -> None:
    """Raise `Failed` unless ``actual`` is as close to ``exact`` (float64) as ``plain``, the same formula in actual's precision.

    Allowed: multiple · (max |plain - exact| + eps · max |exact|), and never more than `CAP`. ``scale`` is a lower bound for
    max |exact|, for values that cancel. The plain computation is one draw of rounding, and may be a lucky one: where it does
    not explain the error, ``moved`` says how far one rounding of every input moves ``exact``. ``cancelling``: the size of the
    numbers whose difference ``exact`` may be; what the plain computation loses of them it may, too.
    """
    if actual.shape != exact.shape:
        raise Failed(f"shape {tuple(exact.shape)}", f"shape {tuple(actual.shape)}", what)
    if exact.numel() == 0:
        return
    expect_finite(actual, what)
    exact = exact.detach().double()
    scale = max(scale, exact.abs().max().item())
    eps = max(torch.finfo(actual.dtype).eps, FINEST)
    lost = 0.0 if plain is None else (plain.detach().double() - exact).abs().nan_to_num(torch.inf).max().item()
    error, cap = (actual.detach().double() - exact).abs(), max(CAP[actual.dtype] * scale, eps * cancelling)
    allowed = min(multiple * (lost + eps * scale), cap) + torch.finfo(actual.dtype).tiny
    if error.max().item() > allowed:
        lost = max(lost, moved())
        allowed = min(multiple * (lost + eps * scale), cap) + torch.finfo(actual.dtype).tiny
    if error.max().item() > allowed:
        worst = _index(int(error.argmax()), error.shape)
        detail = f"error {error.max().item():.3g}, allowed {allowed:.3g} (plain arithmetic loses {lost:.3g})"
        raise Failed(f"{exact[worst].item():.6g}", f"{actual[worst].item():.6g}", place(what, worst), detail)


def expect_unbiased(actual: Tensor, exact: Tensor, plain: Tensor | None, what: str, scale: float = 0.0) -> None:
    """Raise `Failed` unless ``actual`` is on the whole one times ``exact``: errors of rounding have either sign and cancel in
    the sum, a factor does not, and hides within what a half type may lose of each number.

    The factor is that of least squares, ⟨actual, exact⟩ / ⟨exact, exact⟩. Allowed beside 1: `MULTIPLE` times the sum of what the
    plain computation's is off, of one rounding, and of what errors as large as its largest come to over N numbers, σ / √N; and
    what numbers below the type's smallest normal one lose, which have no relative precision (float16: 6e-5).
    """
    exact, size = exact.detach().double(), exact.double().norm().item()
    if exact.numel() < 2 or size == 0:
        return
    unit = torch.finfo(actual.dtype).eps / 2
    off, lost = 0.0, 0.0
    if plain is not None and plain.isfinite().all():
        off, lost = _factor(plain, exact) - 1, (plain.detach().double() - exact).abs().max().item()
    allowed = MULTIPLE * (abs(off) + unit + (lost + unit * max(scale, exact.abs().max().item())) / size)
    allowed += torch.finfo(actual.dtype).tiny * exact.numel() ** 0.5 / size
    factor = _factor(actual, exact)
    if not abs(factor - 1) <= allowed:
        raise Failed("1 times the definition's", f"{factor:.4g} times", what, f"allowed ± {allowed:.2g}")


def _factor(t: Tensor, exact: Tensor) -> float:
    return (t.detach().double() * exact).sum().item() / exact.square().sum().item()


def expect_same(actual: Tensor, expected: Tensor, what: str, allowed: float = 0.0, detail: str = "") -> None:
    """Raise `Failed` unless the two are bitwise equal, or differ by no more than ``allowed``."""
    if actual.shape != expected.shape:
        raise Failed(f"shape {tuple(expected.shape)}", f"shape {tuple(actual.shape)}", what)
    if actual.numel() == 0:
        return
    difference = (actual.double() - expected.double()).abs().nan_to_num(torch.inf)
    if difference.max().item() > allowed:
        first = tuple((difference > allowed).nonzero()[0].tolist())
        raise Failed(f"{expected[first].item():.9g}", f"{actual[first].item():.9g}", place(what, first), detail)


def expect_finite(actual: Tensor, what: str) -> None:
    """Raise `Failed` at the first NaN or infinity."""
    if not torch.isfinite(actual).all():
        first = tuple((~torch.isfinite(actual)).nonzero()[0].tolist())
        raise Failed("a finite number", f"{actual[first].item()}", place(what, first))


def place(what: str, index: tuple[int, ...]) -> str:
    return f"{what}[{', '.join(map(str, index))}]"


def _index(flat: int, shape: torch.Size) -> tuple[int, ...]:
    return tuple(int(n) for n in torch.unravel_index(torch.tensor(flat), shape))
