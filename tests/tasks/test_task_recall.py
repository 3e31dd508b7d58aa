"""Periodic recall tells who can look a period back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnzoo.data.config import DataConfig
from attnzoo.errors import RequestError
from attnzoo.shapes import IGNORE
from attnzoo.tasks import build_task
from attnzoo.tasks.config import TaskConfig


def recall(seed: int = 0, **settings):
    own = {key: settings.pop(key) for key in ("n_symbols",) if key in settings}
    return build_task(TaskConfig(**{"name": "recall", "n_tokens": 128, "options": own, **settings}), DataConfig(), seed)


def rows_of(batch) -> list[list[int]]:
    """Whole rows of T + 1 symbols; the last one is scored, so it is in the targets."""
    return torch.cat([batch.tokens, batch.targets[:, -1:]], dim=1).tolist()


def shortest_period(row: list[int]) -> int:
    return next(p for p in range(1, len(row)) if row[p:] == row[:-p])


@given(n_tokens=st.integers(8, 100), n_symbols=st.integers(2, 70), step=st.integers(0, 10**6))
def test_each_row_repeats_a_period_and_is_scored_after_the_first(n_tokens, n_symbols, step):
    batch = recall(n_tokens=n_tokens, n_symbols=n_symbols).train_batch(step, 5)
    assert batch.tokens.shape == batch.targets.shape == (5, n_tokens)
    for row, targets in zip(rows_of(batch), batch.targets.tolist(), strict=True):
        period = next(t for t, target in enumerate(targets) if target != IGNORE)  # its target stands at period + 1
        assert n_tokens // 8 <= period <= n_tokens // 2
        assert row[period:] == row[:-period]
        assert targets == [IGNORE] * period + row[period + 1 :]
        assert max(row) < n_symbols


def test_periods_and_symbols_are_spread():
    rows = [row for step in range(20) for row in rows_of(recall().train_batch(step, 50))]
    periods = torch.tensor([shortest_period(row) for row in rows]).double()
    deviation = ((64 - 16 + 1) ** 2 / 12 / len(rows)) ** 0.5  # of a mean of uniform integers on 16..64
    assert abs(periods.mean() - 40) < 5 * deviation
    assert (periods.min(), periods.max()) == (16, 64)
    assert len({symbol for row in rows for symbol in row}) == 64


def reader(row: list[int], t: int, window: int) -> int:
    """Predicts row[t + 1] from what follows the longest earlier repetition of the last symbols in sight."""
    seen = row[max(0, t + 1 - window) : t + 1]
    best = max(
        range(1, len(seen)),
        key=lambda lag: next(
            (n for n in range(len(seen) - lag) if seen[-1 - n] != seen[-1 - n - lag]), len(seen) - lag
        ),
        default=1,
    )
    return seen[-best]


def accuracy(window: int) -> float:
    batch = next(recall().validation_batches(64))
    hits = [
        reader(row, t, window) == target
        for row, targets in zip(rows_of(batch), batch.targets.tolist(), strict=True)
        for t, target in enumerate(targets)
        if target != IGNORE
    ]
    return sum(hits) / len(hits)


def test_looking_back_solves_it_and_a_narrow_window_does_not():
    assert accuracy(window=128) > 0.97
    assert accuracy(window=16) < 3 * recall().chance  # the shortest period is 16, so its source is out of sight


def test_batches_depend_on_seed_and_step_alone():
    first = recall().train_batch(3, 4).tokens
    assert torch.equal(recall().train_batch(3, 4).tokens, first)
    assert not torch.equal(recall().train_batch(4, 4).tokens, first)
    assert not torch.equal(recall(seed=1).train_batch(3, 4).tokens, first)


def test_validation_rows_are_fixed_and_come_from_another_stream():
    small = torch.cat([batch.tokens for batch in recall().validation_batches(7)])
    (whole,) = recall(seed=5).validation_batches(64)
    assert torch.equal(small, whole.tokens)
    assert len(small) == 64
    held_out = {tuple(row) for row in small.tolist()}
    for seed in (0, 5):
        # 64 rows at a time, as validation draws them: the same stream would give the same rows
        trained = {tuple(row) for step in range(25) for row in recall(seed).train_batch(step, 64).tokens.tolist()}
        assert not held_out & trained


def test_what_it_says_about_itself():
    task = recall(n_symbols=32)
    assert (task.name, task.vocab_size, task.n_tokens, task.chance) == ("recall", 32, 128, 1 / 32)
    assert task.bytes_per_token is None
    assert task.tokenizer is None


def test_wrong_requests_are_refused_with_every_reason():
    with pytest.raises(RequestError) as caught:
        recall(n_tokens=7, n_symbols=1, validation_rows=0)
    assert len(caught.value.reasons) == 3
