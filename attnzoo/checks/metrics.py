"""What `check metric:NAME` holds a metric to: sums that are divided once, over the scored tokens alone, without side effects."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnzoo import components
from attnzoo.arguments import demand
from attnzoo.checks.compare import Failed
from attnzoo.errors import RequestError
from attnzoo.metrics.base import Metric
from attnzoo.options import Options
from attnzoo.shapes import IGNORE
from attnzoo.tasks.base import Batch, Task

ROWS, N_TOKENS, VOCAB = 13, 24, 11
TERMS = 8
"""Roundings a token: float32 sums of N terms are off by N·eps of their size, and what is made of them by a few times that."""


class Posed(Task):
    """Random tokens that have both a chance level and bytes, so that every metric applies."""

    name = "check"
    vocab_size, chance, bytes_per_token = VOCAB, 1 / VOCAB, 3.7

    def rows(self, random: np.random.Generator, n: int) -> tuple[Any, Any]:
        drawn = random.integers(0, VOCAB, size=(n, self.n_tokens + 1))
        return drawn[:, :-1], drawn[:, 1:]


@dataclass
class Subject:
    """A metric that can be made anew, and what it scores: rows of 0 to T scored tokens, the fuller the better predicted."""

    cls: type[Metric]
    options: Options
    task: Task
    logits: Tensor
    batch: Batch

    def make(self) -> Metric:
        return self.cls(self.options, self.task)

    def value(self, parts: Sequence[Sequence[int]] | None = None, logits: Tensor | None = None) -> float:
        """The value of rows that come in these parts; all at once by default."""
        metric, logits = self.make(), self.logits if logits is None else logits
        with torch.no_grad():
            for rows in parts or [range(ROWS)]:
                which = list(rows)
                metric.update(logits[which], Batch(self.batch.tokens[which], self.batch.targets[which]))
        return float(metric.value())


def subject(cls: type[Metric], given: Mapping[str, Any], device: str) -> Subject:
    options, faults = components.read_class(cls.Options, "metric", cls.name, given, "")
    demand(f"the metric {cls.__name__} cannot be checked", faults)
    assert options is not None
    task = Posed(Options(), n_tokens=N_TOKENS)
    if not cls.applies(task):
        raise RequestError(
            f"the metric {cls.__name__} cannot be checked: it does not apply to tokens with chance and bytes"
        )
    tokens, targets = task.train_batch(0, ROWS).tokens, task.train_batch(0, ROWS).targets
    random = torch.Generator().manual_seed(0)
    lengths = torch.linspace(0, N_TOKENS, ROWS).round().long()
    logits = torch.randn(ROWS, N_TOKENS, VOCAB, generator=random)
    logits += torch.nn.functional.one_hot(targets, VOCAB) * (lengths / 6)[:, None, None]
    targets = torch.where(torch.arange(N_TOKENS) < lengths[:, None], targets, IGNORE)
    return Subject(cls, cls.Options(**vars(options)), task, logits.to(device), Batch(tokens, targets).to(device))


def batches_do_not_matter(s: Subject) -> str:
    """The value depends neither on the size of the batches nor on their order: no means of batches are averaged."""
    whole = s.value()
    ways: dict[str, Sequence[Sequence[int]]] = {
        "a row at a time": [[n] for n in range(ROWS)],
        "in batches of 3": [range(n, min(n + 3, ROWS)) for n in range(0, ROWS, 3)],
        "the last rows first": [[n] for n in reversed(range(ROWS))],
    }
    for said, parts in ways.items():
        _near(s.value(parts), whole, said)
    return f"{ROWS} rows of 0 to {N_TOKENS} scored tokens, {len(ways) + 1} ways"


def unscored_tokens_do_not_count(s: Subject) -> str:
    """Where the target is IGNORE, logits change nothing, whatever they are."""
    unscored = (s.batch.targets == IGNORE)[..., None]
    whole = s.value()
    for said, put in {"other": -3 * s.logits, "equal": torch.zeros_like(s.logits), "large": 50 + s.logits}.items():
        _near(s.value(logits=torch.where(unscored, put, s.logits)), whole, f"{said} logits at unscored positions")
    return f"{int(unscored.sum())} unscored tokens"


def value_is_finite(s: Subject) -> str:
    """The value is a finite number, also where the model is sure, right or wrong, in bfloat16, and where a batch has nothing
    that is scored."""
    ways: dict[str, Callable[[], float]] = {
        "random logits": s.value,
        "sure and mostly wrong": lambda: s.value(logits=100 * s.logits),
        "bfloat16": lambda: s.value(logits=s.logits.bfloat16()),
        "the first rows, the first of them unscored": lambda: s.value([[0], [1, 2]]),
    }
    for said, make in ways.items():
        if not math.isfinite(value := make()):
            raise Failed("a finite number", str(value), said)
    return ", ".join(ways)


def keeps_no_gradient(s: Subject) -> str:
    """Its sums hold no graph, and `value` gives a plain number: nothing of the logits stays alive."""
    metric, logits = s.make(), s.logits.clone().requires_grad_()
    with torch.enable_grad():
        metric.update(logits, s.batch)
        value = metric.value()
    held = [name for name, each in metric.sums.items() if each.requires_grad]
    if held or (isinstance(value, Tensor) and value.requires_grad):
        raise Failed("no gradient", f"requires_grad of {', '.join(held) or 'the value'}")
    return f"sums {', '.join(metric.sums) or 'of its own'}"


def leaves_its_input(s: Subject) -> str:
    """Logits and batch are as they were; the metrics after it read the same ones."""
    given = s.logits.clone(), s.batch.tokens.clone(), s.batch.targets.clone()
    with torch.no_grad():
        s.make().update(given[0], Batch(*given[1:]))
    before = (s.logits, s.batch.tokens, s.batch.targets)
    for name, now, was in zip(("logits", "tokens", "targets"), given, before, strict=True):
        if not torch.equal(now, was):
            raise Failed("as before", "changed", name)
    return "logits, targets, tokens"


def starts_anew(s: Subject) -> str:
    """Another instance begins with nothing: what was scored before does not count again."""
    first, whole = s.value([range(ROWS // 2, ROWS)]), s.value()
    _near(s.value([range(ROWS // 2, ROWS)]), first, "after another instance has scored all rows")
    _near(s.value(), whole, "a second time")
    return "two instances, one after the other"


PROPERTIES = (
    batches_do_not_matter, unscored_tokens_do_not_count, value_is_finite, keeps_no_gradient, leaves_its_input, starts_anew,
)  # fmt: skip


def _near(actual: float, expected: float, said: str) -> None:
    allowed = TERMS * ROWS * N_TOKENS * torch.finfo(torch.float32).eps * max(1.0, abs(expected))
    if not abs(actual - expected) <= allowed:
        raise Failed(f"{expected:.9g}", f"{actual:.9g}", said, f"± {allowed:.2g}")
