from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo.checks.pytest import conformance
from attnzoo.errors import RequestError

test_conformance = conformance("retention", quick=True)


def test_decays_are_the_papers():
    rule = attnzoo.build("retention", n_heads=4, head_dim=2, normalise=False)
    ones = torch.ones(1, 4, 3, 2)
    _, weights = rule.reference(ones, ones, ones)
    # γ = 31/32, 63/64, 127/128, 255/256
    right = 1 - 2.0 ** -torch.arange(5, 9, dtype=torch.float64)
    torch.testing.assert_close(weights[0, :, 2, 1] / weights[0, :, 2, 2], right)
    torch.testing.assert_close(weights[0, :, 2, 0] / weights[0, :, 2, 2], right.square())


def test_the_normaliser_by_hand():
    """Two tokens, γ = 1/2, q·k = 4: R = 4 / sqrt(1) in row 0, (2, 4) / sqrt(1.5) in row 1; both sum to more than 1."""
    rule = attnzoo.build("retention", n_heads=1, head_dim=1, decay=0.5)
    q, k = torch.full((1, 1, 2, 1), 2.0), torch.full((1, 1, 2, 1), 2.0)
    v = torch.tensor([3.0, 9.0]).view(1, 1, 2, 1)
    torch.testing.assert_close(rule(q, k, v).flatten(), torch.tensor([3.0, 3 * 2 / 6 + 9 * 4 / 6]))
    # q·k = 0.04: row sums below 1 are left alone, and only sqrt(Σγ) divides
    small = rule(q / 10, k / 10, v).flatten()
    torch.testing.assert_close(small, torch.tensor([0.04 * 3, (0.02 * 3 + 0.04 * 9) / 1.5**0.5]))


def test_the_normaliser_needs_one_column_of_state():
    with_it, without = (attnzoo.build("retention", n_heads=2, head_dim=8, normalise=n) for n in (True, False))
    assert with_it.new_cache(3, 1000).nbytes == 3 * 2 * 8 * 9 * 4
    assert without.new_cache(3, 1000).nbytes == without.cache_bytes(3, 1000, torch.float32) == 3 * 2 * 8 * 8 * 4


@pytest.mark.parametrize("options", [{"decay": 0.0}, {"decay": 1.5}, {"chunk": 0}, {"chunk": 12}])
def test_options_that_make_no_sense(options):
    with pytest.raises(RequestError, match="must be"):
        attnzoo.build("retention", n_heads=2, head_dim=8, **options)
