"""Multi-query associative recall as Zoology has it (arXiv:2312.04927): its places, its power law, its answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnzoo.config import compose
from attnzoo.errors import RequestError
from attnzoo.shapes import IGNORE
from attnzoo.tasks.mqar import MQAR, MQAROptions


def rows(n: int = 64, n_tokens: int = 64, seed: int = 0, **options) -> tuple[MQAR, np.ndarray, np.ndarray]:
    task = MQAR(MQAROptions(**{"n_symbols": 64, "n_pairs": 4, **options}), n_tokens=n_tokens)
    return task, *task.rows(np.random.default_rng(seed), n)


@given(
    n_pairs=st.integers(1, 6), spare=st.integers(0, 9), passes=st.integers(1, 3), power=st.floats(0.01, 2),
    random=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_every_key_of_a_row_is_asked_for_once_and_answered_by_its_value(n_pairs, spare, passes, power, random, seed):
    n_tokens = 2 * n_pairs * (passes + 1) + 2 * spare
    task, tokens, targets = rows(
        5, n_tokens, seed, n_pairs=n_pairs, n_passes=passes, power_a=power, random_non_queries=random
    )
    shown = 2 * n_pairs * passes
    assert tokens.shape == targets.shape == (5, n_tokens)
    assert tokens.min() >= 0
    assert tokens.max() < 64
    for row, target in zip(tokens, targets, strict=True):
        keys, values = row[: 2 * n_pairs : 2], row[1 : 2 * n_pairs : 2]
        assert len(set(keys)) == len(set(values)) == n_pairs
        assert all(0 < key < 32 <= value for key, value in zip(keys, values, strict=True))
        assert np.array_equal(row[:shown], np.tile(row[: 2 * n_pairs], passes))
        at = np.flatnonzero(target != IGNORE)
        assert (at >= shown).all()
        assert (at % 2 == 0).all()
        assert sorted(row[at]) == sorted(keys)
        answer = dict(zip(keys, values, strict=True))
        assert [answer[key] for key in row[at]] == target[at].tolist()
        rest = np.delete(row[shown:], at - shown)
        assert random or not rest.any()
    solved = task.solve(tokens)
    assert (solved[targets != IGNORE] == targets[targets != IGNORE]).all()


def test_distances_reach_from_the_query_to_its_value():
    task, tokens, targets = rows()
    far = task.distances(tokens, targets)
    for row, t in zip(*np.nonzero(far), strict=True):
        assert tokens[row, t - far[row, t]] == targets[row, t]
        assert tokens[row, t - far[row, t] - 1] == tokens[row, t]
    assert (far > 0).sum() == (targets != IGNORE).sum() == 64 * 4


@pytest.mark.parametrize("power", [0.01, 0.5, 1.0])
def test_the_first_draw_of_gaps_follows_the_power_law(power):
    """One pair a row: the gap's distribution is the law itself. Each share within 5 standard errors of it."""
    n, places = 20_000, 15
    _, _, targets = rows(n, 2 + 2 * places, power_a=power, n_pairs=1)
    gaps = (np.nonzero(targets != IGNORE)[1] - 2) // 2
    law = np.arange(1, places + 1) ** (power - 1.0)
    law /= law.sum()
    share = np.bincount(gaps, minlength=places) / n
    assert (np.abs(share - law) < 5 * np.sqrt(law * (1 - law) / n)).all()


def test_draws_without_replacement_are_those_of_numpy():
    """Two pairs: every ordered pair of gaps as often as successive draws with the remaining weights have it."""
    n, places = 40_000, 4
    _, tokens, _ = rows(n, 4 + 2 * places, power_a=0.3, n_pairs=2, random_non_queries=False)
    first = tokens[:, :1]  # the key of the first pair is the first drawn
    at = (
        np.argmax(tokens[:, 4::2] == first, axis=1),
        np.argmax((tokens[:, 4::2] != first) & (tokens[:, 4::2] > 0), axis=1),
    )
    weight = np.arange(1, places + 1) ** (0.3 - 1)
    for one in range(places):
        for other in range(places):
            if one != other:
                p = weight[one] / weight.sum() * weight[other] / (weight.sum() - weight[one])
                share = ((at[0] == one) & (at[1] == other)).mean()
                assert abs(share - p) < 5 * np.sqrt(p * (1 - p) / n)


def test_a_guesser_of_values_is_at_chance():
    task, tokens, targets = rows(4000, n_symbols=16)
    guesses = np.random.default_rng(1).integers(8, 16, tokens.shape)
    scored = targets != IGNORE
    right = (guesses == targets)[scored].mean()
    assert abs(right - task.chance) < 5 * np.sqrt(task.chance / scored.sum())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["task.n_tokens=15"], r"task\.n_tokens=15: mqar needs an even number"),
        (["task.n_tokens=30"], r"task\.n_tokens=30: 8 pairs and their queries need at least 32"),
        (["task.n_symbols=16"], r"task\.n_symbols=16: 8 different keys need at least 18"),
        (["task.power_a=0"], r"task\.power_a=0\.0: must be more than 0"),
        (["task.n_pairs=0"], r"task\.n_pairs=0: must be at least 1"),
    ],
)
def test_what_cannot_be_posed_is_refused_before_anything_starts(settings, says):
    with pytest.raises(RequestError, match=says):
        compose("train", ["task=mqar", *settings])
