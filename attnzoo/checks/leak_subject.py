"""What the leak tests work on, and what they say. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnzoo.checks.leak_rounding import explained
from attnzoo.checks.leak_setup import devices_of
from attnzoo.errors import RequestError
from attnzoo.seeds import reseed


@dataclass(frozen=True)
class LeakTest:
    """One test.

    ``max_change`` is the largest change (or gradient) where there must be none, ``first_leaking_position`` the earliest
    logit that shows one. A skipped test has not passed; ``detail`` says why it was skipped.
    """

    name: str
    passed: bool
    skipped: bool = False
    max_change: float | None = None
    first_leaking_position: int | None = None
    detail: str = ""

    @property
    def status(self) -> str:
        return "skipped" if self.skipped else "passed" if self.passed else "FAILED"


def skip(name: str, why: str) -> LeakTest:
    return LeakTest(name, False, skipped=True, detail=why)


@dataclass
class Worst:
    """The earliest logit that moved where none may (-1: none did), and the largest such move."""

    allowed: float
    largest: float = 0.0
    position: int = -1
    row: int = 0
    cut: int = 0

    @property
    def leaks(self) -> bool:
        return self.position >= 0

    def see(self, move: Tensor, cut: int, first_row: int = 0) -> None:
        """move (B, n): how far logits that must stand still moved when tokens from ``cut`` on were changed, in the rows
        from ``first_row`` on."""
        if not move.numel():
            return
        self.largest = max(self.largest, float(move.max()))
        rows, positions = (move > self.allowed).nonzero(as_tuple=True)
        if len(positions) and (not self.leaks or int(positions.min()) < self.position):
            first = int(positions.argmin())
            self.position, self.row, self.cut = int(positions[first]), first_row + int(rows[first]), cut

    def result(self, name: str, good: str, bad: str) -> LeakTest:
        if self.leaks:
            return LeakTest(name, False, max_change=self.largest, first_leaking_position=self.position, detail=bad)
        return LeakTest(name, True, max_change=self.largest, detail=good)


@dataclass
class Subject:
    """The callable with its base tokens (B, T) and their logits (B, T, V); rounding may change them by ``bound``,
    which is ``rounding`` times the largest. ``training_batch``: sequences in a batch while it trains."""

    logits_fn: Callable[[Tensor], Tensor]
    modules: list[nn.Module]
    vocab_size: int
    tokens: Tensor
    logits: Tensor
    cuts: list[int]
    exact: bool
    rounding: float
    bound: float
    dtype: torch.dtype
    seed: int
    draw: torch.Generator
    training_batch: int

    @property
    def n_tokens(self) -> int:
        return self.tokens.shape[1]

    def some(self, n: int) -> list[int]:
        """At most n of the cuts, spread over them."""
        every = -(-len(self.cuts) // n)
        return self.cuts[::-1][::every][::-1]  # the last cut is always among them

    @property
    def allowed(self) -> float:
        """The largest change of a logit that a later token may cause."""
        return 0.0 if self.exact else self.bound

    def run(self, tokens: Tensor) -> Tensor:
        """Logits of other tokens, the random state as in every other call: dropout, if any, drops the same."""
        reseed(self.seed, tokens.device, *devices_of(self.modules))
        return check_logits(self.logits_fn(tokens), tokens, self.vocab_size)

    def explained(self, tokens: Tensor, computed: Tensor) -> float:
        """What more than the usual bound rounding may do to the logits ``computed`` of these tokens; see there."""
        return explained(self.run, self.modules, tokens, computed, torch.finfo(self.dtype).eps, self.seed)

    def changed(self, where: slice | int, rows: slice = slice(None)) -> Tensor:
        """The base tokens with each token ``where`` replaced by another one."""
        tokens = self.tokens.clone()
        chosen = tokens[rows, where]
        step = torch.randint(1, self.vocab_size, chosen.shape, generator=self.draw).to(tokens.device)
        tokens[rows, where] = (chosen + step) % self.vocab_size
        return tokens

    def moved(self, tokens: Tensor) -> Tensor:
        """(B, T): how far the logits of ``tokens`` lie from the base ones; 0 only where they are bitwise equal."""
        return distance(self.run(tokens).detach(), self.logits)

    def of_rows(self, n_rows: int) -> Subject:
        """The same with other base tokens, ``n_rows`` of them, whose logits are computed here."""
        tokens = torch.randint(self.vocab_size, (n_rows, self.n_tokens), generator=self.draw).to(self.tokens.device)
        return replace(self, tokens=tokens, logits=self.run(tokens).detach())


def distance(new: Tensor, old: Tensor) -> Tensor:
    """(…, V) twice -> (…): the largest difference; 0 only where all are equal, infinite where one is not finite."""
    wide = torch.float64 if new.dtype == torch.float64 else torch.float32
    apart = (new.to(wide) - old.to(wide)).abs().amax(-1).nan_to_num(nan=math.inf)
    tiny = torch.finfo(wide).tiny
    return torch.where((new != old).any(-1), apart.clamp(min=tiny), 0.0)


def check_logits(logits: Any, tokens: Tensor, vocab_size: int) -> Tensor:
    """A copy of the logits, if they are floats (B, T, V): the next call may write into the same memory.

    Raises:
        RequestError: they are something else.
    """
    expected = (*tokens.shape, vocab_size)
    if isinstance(logits, Tensor) and tuple(logits.shape) == expected and logits.is_floating_point():
        return logits.clone()
    got = f"{logits.dtype} {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
    raise RequestError(
        "the callable must return logits (B, T, V)",
        [
            f"got {got}, expected floats {expected}",
            "wrap it where it returns more: lambda t: model(t).logits, or lambda t: model(t)[0]",
        ],
    )
