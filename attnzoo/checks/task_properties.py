"""The properties of a task behind `check_model`; see `attnzoo.checks.model_properties`."""

from __future__ import annotations

import itertools

from torch import Tensor

from attnzoo.checks.compare import Failed
from attnzoo.data.corpus import check_disjoint
from attnzoo.errors import RequestError
from attnzoo.shapes import IGNORE
from attnzoo.tasks.base import Task


def label_shift(task: Task) -> str:
    """The target at t is the token at t + 1: shifted, and shifted once."""
    batches = [task.train_batch(step, 4) for step in (0, 1)] + list(itertools.islice(task.validation_batches(4), 2))
    scored_tokens = 0
    for batch in batches:
        tokens, targets = batch.tokens, batch.targets
        scored = targets[:, :-1] != IGNORE
        scored_tokens += int(scored.sum())
        if (wrong := scored & (targets[:, :-1] != tokens[:, 1:])).any():
            row, t = wrong.nonzero()[0].tolist()
            shifts = {0: "not shifted", 2: "shifted twice"}
            hints = [said for by, said in shifts.items() if _agree(tokens, targets, by)]
            expected, actual = f"tokens[{t + 1}] = {int(tokens[row, t + 1])}", f"targets[{t}] = {int(targets[row, t])}"
            raise Failed(expected, actual, f"row {row}", *hints[:1])
    if not scored_tokens:
        raise Failed("scored tokens", "none")
    return f"{scored_tokens} scored tokens of {len(batches)} batches"


def splits_disjoint(task: Task) -> str:
    """Training and validation share no window, and the splits share no text."""
    corpus = getattr(task, "corpus", None)
    if corpus is not None:
        try:
            check_disjoint(corpus)
        except RequestError as error:
            raise Failed("no text in both splits", " ".join(str(error).split())) from None
    validation = {
        tuple(row) for batch in itertools.islice(task.validation_batches(8), 8) for row in batch.tokens.tolist()
    }
    for step in range(8):
        for row in task.train_batch(step, 8).tokens.tolist():
            if tuple(row) in validation:
                raise Failed("no training row in the validation set", f"a row that starts {row[:8]}", f"step {step}")
    return f"{len(validation)} validation rows against 64 training rows"


def _agree(tokens: Tensor, targets: Tensor, by: int) -> bool:
    n = tokens.shape[1] - by
    shifted, scored = targets[:, :n], targets[:, :n] != IGNORE
    return bool((shifted == tokens[:, by:])[scored].all())
