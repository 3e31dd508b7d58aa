"""One generator of random masks and cases; who makes the choices is left open: a seeded generator, or Hypothesis.

Of each list the first entry is the simplest, so that Hypothesis shrinks a failure towards it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from attnzoo.checks.cases import Case, MaskPlan
from attnzoo.checks.subject import Subject

Choose = Callable[[Sequence], Any]
"""One of several."""

LENGTHS = (1, 2, 3, 5, 8, 11, 16, 17, 23, 32, 33, 41)
LAYOUTS = ((2, 2), (1, 1), (2, 1), (4, 2), (4, 1), (6, 2), (8, 8), (8, 2))
"""Query and key/value heads."""


def draw_mask(choose: Choose) -> MaskPlan:
    """Any subset of the fields, each in any of its shapes."""
    return MaskPlan(
        causal=choose((True, True, True, False)),
        window=choose((None, None, 1, 2, 5, 20)),
        sinks=choose((0, 0, 1, 3, 7)),
        prefix=choose((0, 0, 3)),
        padding=choose((None, None, "right", "left", "deep", "holes", "all")),
        documents=choose((None, None, "runs", "many", "mixed")),
        shared=choose((False, False, True)),
    )


def draw_case(choose: Choose, subject: Subject) -> Case:
    """A case of any sizes, mask, type and kernel; the subject may have to refuse it."""
    can, base = subject.can, subject.base
    heads, kv_heads = choose(((base.heads, base.kv_heads), *LAYOUTS))
    n_keys = choose(LENGTHS)
    return Case(
        heads=heads,
        kv_heads=kv_heads,
        dim=choose((base.dim, base.dim, 2 * base.dim, 5)),
        value_dim=choose((base.value_dim, base.value_dim, 3)) if can.value_dim else None,
        batch=choose((1, 2, 5)),
        n_queries=choose((n_keys, n_keys, *LENGTHS)) if can.cross else n_keys,
        n_keys=n_keys,
        mask=draw_mask(choose),
        bias=choose((False, False, True)) if can.bias else False,
        scale=choose((None, None, 0.3)),
        dtype=choose(subject.dtypes),
        options=choose(("small", "small", "own", *subject.others)),
        kernel=choose((None, *(k for k in subject.kernels if k not in ("auto", "compiled")))),
        seed=choose(range(100)),
    )


def drawn_cases(subject: Subject, count: int, seed: int, *, training: bool = False) -> list[Case]:
    """The same cases in every run: of the first 20 * count draws the first ``count`` that are not refused; else the plainest."""
    rng = random.Random(seed)
    drawn = (draw_case(rng.choice, subject) for _ in range(20 * count))
    return list(islice((case for case in drawn if not subject.reasons(case, training)), count)) or [subject.base]
