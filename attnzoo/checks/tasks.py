"""What `check task:NAME` holds a task to: batches by seed and step alone, splits apart, honest targets, chance and solver."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnzoo import components
from attnzoo.arguments import demand, whole
from attnzoo.checks.compare import Failed, Skip
from attnzoo.checks.task_properties import label_shift, splits_disjoint
from attnzoo.data.config import DataConfig
from attnzoo.errors import RequestError
from attnzoo.options import Options
from attnzoo.seeds import seeded
from attnzoo.shapes import IGNORE
from attnzoo.tasks.base import Batch, Task

N_TOKENS, ROWS, SIGMAS = 64, 256, 5.0
"""T unless the task needs more or is told another; validation rows; standard errors by which a rate may be off (6e-7 by luck)."""


@dataclass
class Subject:
    """A task that can be posed anew, with another seed or length."""

    cls: type[Task]
    options: Options
    n_tokens: int

    def make(self, seed: int = 0, n_tokens: int | None = None, rows: int = 16) -> Task:
        refused: list[str] = getattr(self.options, "length_faults", lambda _: [])(n_tokens or self.n_tokens)
        demand(f"the task {self.cls.__name__} cannot be posed", refused)
        task = self.cls(self.options, n_tokens=n_tokens or self.n_tokens, seed=seed, n_validation_rows=rows)
        task.prepare(DataConfig())
        return task


def subject(cls: type[Task], given: Mapping[str, Any], device: str) -> Subject:
    """``given``: the task's own options; ``n_tokens`` among them is T."""
    own = dict(given)
    n_tokens = own.pop("n_tokens", max(N_TOKENS, cls.least_tokens))
    options, faults = components.read_class(cls.Options, "task", cls.name, own, "")
    demand(f"the task {cls.__name__} cannot be checked", whole("n_tokens", n_tokens, cls.least_tokens), faults)
    assert options is not None
    return Subject(cls, cls.Options(**vars(options)), n_tokens)


def batches_well_formed(s: Subject) -> str:
    """Batches are (B, T) int64 with every token in the vocabulary, every target in it or not scored, and something is scored."""
    lengths, seen = [], 0
    for n_tokens in dict.fromkeys((s.n_tokens, s.cls.least_tokens, 2 * s.n_tokens + 1)):
        if n_tokens != s.n_tokens and hasattr(s.options, "length_faults") and s.options.length_faults(n_tokens):
            continue  # its options refuse this length
        try:
            task = s.make(n_tokens=n_tokens)
        except RequestError:
            if n_tokens == s.n_tokens:
                raise
            continue  # a length that it refuses
        lengths.append(n_tokens)
        for batch in itertools.chain([task.train_batch(0, 4)], itertools.islice(task.validation_batches(4), 4)):
            seen += _well_formed(task, batch, n_tokens, 4)
    if not seen:
        raise Failed("scored tokens", "none")
    return f"{seen} scored tokens at T = {', '.join(map(str, lengths))}"


def _well_formed(task: Task, batch: Batch, n_tokens: int, most: int) -> int:
    v = task.vocab_size
    for name, t in (("tokens", batch.tokens), ("targets", batch.targets)):
        if t.dtype != torch.int64 or t.dim() != 2 or t.shape[1] != n_tokens or not 1 <= len(t) <= most:
            raise Failed(f"int64 (1 … {most}, {n_tokens})", f"{t.dtype} {tuple(t.shape)}", name)
        wrong = (t < 0) | (t >= v) if name == "tokens" else (t != IGNORE) & ((t < 0) | (t >= v))
        if wrong.any():
            row, at = wrong.nonzero()[0].tolist()
            raise Failed(f"0 … {v - 1}, as vocab_size={v} says", str(int(t[row, at])), f"{name}[{row}, {at}]")
    for name in ("documents", "key_padding"):
        t = getattr(batch, name)
        if t is not None and t.shape != batch.tokens.shape:
            raise Failed(f"shape {tuple(batch.tokens.shape)}", f"shape {tuple(t.shape)}", name)
    return int((batch.targets != IGNORE).sum())


def train_batches_by_seed_and_step(s: Subject) -> str:
    """A training batch is a function of seed and step alone, whatever was drawn before and elsewhere; other seeds and steps draw
    others."""
    first, again = s.make(), s.make()
    steps = [first.train_batch(step, 4) for step in range(4)]
    with seeded(1):  # what else draws in between, and the global generators elsewhere than before
        kept = random.getstate(), np.random.get_state()
        random.seed(1)
        np.random.seed(1)
        try:
            for step in (3, 1, 2, 0):
                _same(again.train_batch(step, 4), steps[step], f"step {step}, after others")
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])
    distinct = {_rows(batch) for batch in steps}
    if len(distinct) < len(steps):
        raise Failed("another batch at every step", f"{len(distinct)} batches in {len(steps)} steps")
    if {_rows(s.make(seed=1).train_batch(step, 4)) for step in range(4)} & distinct:
        raise Failed("other batches with another seed", "the same", "seeds 0 and 1")
    return "4 steps in two orders, two seeds"


def validation_fixed(s: Subject) -> str:
    """Validation is the same rows at every call, for every training seed and in batches of every size."""
    task = s.make()
    first = _joined(task.validation_batches(4))
    task.train_batch(0, 4)
    for said, batches in (
        ("at the second call", task.validation_batches(4)),
        ("in batches of 3", task.validation_batches(3)),
        ("with seed 1", s.make(seed=1).validation_batches(4)),
    ):
        _same(_joined(batches), first, said)
    return f"{len(first.tokens)} rows"


def splits_apart(s: Subject) -> str:
    """No training row stands in the validation set, and a text's splits share no text."""
    return splits_disjoint(*(s.make(seed, rows=64) for seed in (0, 1)))


def targets_follow(s: Subject) -> str:
    """Where targets are the next token, the target at t is the token at t + 1: shifted, and shifted once."""
    return label_shift(s.make())


def chance_met(s: Subject) -> str:
    """``chance`` is what guessing reaches: the most frequent answer, or any of the answers, without a look at the tokens."""
    task = s.make(rows=ROWS)
    if task.chance is None:
        raise Skip("accuracy is not its score: chance is None")
    answers = torch.cat([_scored(task.train_batch(step, 32).targets) for step in range(8)])
    counts = torch.bincount(answers)
    commonest, kinds = int(counts.argmax()), int((counts > 0).sum())
    targets = _joined(task.validation_batches(32)).targets
    rate, error = _rate(targets == commonest, targets, task.chance)
    if rate > task.chance + error:
        raise Failed(
            f"at most chance = {task.chance:.4g}", f"{rate:.4g}", f"always answering {commonest}", f"± {error:.2g}"
        )
    if max(rate + error, 1 / kinds) < task.chance * (1 - 1e-6):
        raise Failed(
            f"chance = {task.chance:.4g}",
            f"{rate:.4g}, and {1 / kinds:.4g} by drawing one of {kinds} answers",
            "guessing",
        )
    return f"always answering {commonest}: {rate:.4g}; chance {task.chance:.4g}"


def solvable(s: Subject) -> str:
    """Its ``solve(tokens)`` beats chance, from each row alone and no token later than the one that it answers at."""
    task = s.make(rows=ROWS // 4)
    solve = getattr(task, "solve", None)
    if solve is None:
        raise Skip("it brings no solve(tokens)")
    batch = _joined(task.validation_batches(32))
    answers = torch.as_tensor(solve(batch.tokens.numpy().copy()))
    if answers.shape != batch.targets.shape:
        raise Failed(f"shape {tuple(batch.targets.shape)}", f"shape {tuple(answers.shape)}", "solve(tokens)")
    chance = task.chance or 0.0
    rate, error = _rate(answers == batch.targets, batch.targets, chance)
    if rate <= chance + error:
        raise Failed(f"more than chance = {chance:.4g}", f"{rate:.4g}", "accuracy of solve(tokens)", f"± {error:.2g}")
    half = s.n_tokens // 2
    other = torch.cat([batch.tokens[:, :half], batch.tokens.roll(1, 0)[:, half:]], 1)[:8]
    early, before = torch.as_tensor(solve(other.numpy().copy()))[:, :half], answers[:8, :half]
    scored = batch.targets[:8, :half] != IGNORE  # what stands elsewhere is no answer
    if (wrong := scored & (early != before)).any():
        row, at = wrong.nonzero()[0].tolist()
        raise Failed(
            str(int(before[row, at])), str(int(early[row, at])), f"answer {at}", f"tokens from {half} on changed"
        )
    return f"accuracy {rate:.4g}; chance {chance:.4g}"


PROPERTIES = (
    batches_well_formed, train_batches_by_seed_and_step, validation_fixed, splits_apart, targets_follow, chance_met, solvable,
)  # fmt: skip


def _rate(right: Tensor, targets: Tensor, chance: float) -> tuple[float, float]:
    """Accuracy over scored tokens, and how far it may be off: rows are drawn apart, the tokens of one may hang together."""
    scored = targets != IGNORE
    n = int(scored.sum())
    rate = float((right & scored).sum()) / n
    residual = ((right & scored).sum(1) - rate * scored.sum(1)).double()
    by_row = float(residual.square().sum().sqrt()) / n
    return rate, SIGMAS * max(by_row, (chance * (1 - chance) / n) ** 0.5)


def _scored(targets: Tensor) -> Tensor:
    return targets[targets != IGNORE]


def _rows(batch: Batch) -> bytes:
    return batch.tokens.numpy().tobytes() + batch.targets.numpy().tobytes()


def _joined(batches: Iterator[Batch]) -> Batch:
    listed = list(batches)
    return Batch(torch.cat([b.tokens for b in listed]), torch.cat([b.targets for b in listed]))


def _same(actual: Batch, expected: Batch, said: str) -> None:
    for name in ("tokens", "targets"):
        a, b = getattr(actual, name), getattr(expected, name)
        if a.shape != b.shape:
            raise Failed(f"shape {tuple(b.shape)}", f"shape {tuple(a.shape)}", name, said)
        if (a != b).any():
            row, at = (a != b).nonzero()[0].tolist()
            raise Failed(str(int(b[row, at])), str(int(a[row, at])), f"{name}[{row}, {at}]", said)
