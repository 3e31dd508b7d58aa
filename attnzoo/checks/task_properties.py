"""What `check_model` and `check task:NAME` ask of a task's batches."""

from __future__ import annotations

import itertools

from attnzoo.checks.compare import Failed, Skip
from attnzoo.data.corpus import check_disjoint
from attnzoo.errors import RequestError
from attnzoo.shapes import IGNORE
from attnzoo.tasks.base import Batch, Task


def label_shift(task: Task) -> str:
    """The target at t is the token at t + 1, where a task has this form: shifted, and shifted once."""
    batches = [task.train_batch(step, 4) for step in (0, 1)] + list(itertools.islice(task.validation_batches(4), 2))
    scored_tokens = sum(int((batch.targets != IGNORE).sum()) for batch in batches)
    if not scored_tokens:
        raise Failed("scored tokens", "none")
    agreed = {by: _agreement(batches, by) for by in (0, 1, 2)}
    hints = [said for by, said in {0: "not shifted", 2: "shifted twice"}.items() if agreed[by] > 0.5]
    if agreed[1] < 0.5 and not hints:
        raise Skip("its targets are not the next token")
    for batch in batches:
        tokens, targets = batch.tokens, batch.targets
        if (wrong := (targets[:, :-1] != IGNORE) & (targets[:, :-1] != tokens[:, 1:])).any():
            row, t = wrong.nonzero()[0].tolist()
            expected, actual = f"tokens[{t + 1}] = {int(tokens[row, t + 1])}", f"targets[{t}] = {int(targets[row, t])}"
            raise Failed(expected, actual, f"row {row}", *hints[:1])
    return f"{scored_tokens} scored tokens of {len(batches)} batches"


def splits_disjoint(*tasks: Task) -> str:
    """Training and validation share no window, and the splits share no text."""
    corpus = getattr(tasks[0], "corpus", None)
    if corpus is not None:
        try:
            check_disjoint(corpus)
        except RequestError as error:
            raise Failed("no text in both splits", " ".join(str(error).split())) from None
    validation = {
        tuple(row) for batch in itertools.islice(tasks[0].validation_batches(8), 8) for row in batch.tokens.tolist()
    }
    for task in tasks:
        for step in range(8):
            for row in task.train_batch(step, 8).tokens.tolist():
                if tuple(row) in validation:
                    raise Failed(
                        "no training row in the validation set", f"a row that starts {row[:8]}", f"step {step}"
                    )
    return f"{len(validation)} validation rows against {64 * len(tasks)} training rows"


def _agreement(batches: list[Batch], by: int) -> float:
    """The share of targets that are the token ``by`` places on, of those for which the row has one."""
    agreeing = scored = 0
    for batch in batches:
        n = batch.tokens.shape[1] - by
        targets = batch.targets[:, :n]
        scored += int((targets != IGNORE).sum())
        agreeing += int(((targets != IGNORE) & (targets == batch.tokens[:, by:])).sum())
    return agreeing / scored if scored else 0.0
