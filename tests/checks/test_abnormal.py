"""The table of abnormal input: classes of answers, and none of them a fault."""

from __future__ import annotations

import pytest
import torch

from attnzoo.checks.abnormal import COLUMNS, _spread, answers


@pytest.mark.parametrize("name", ["exact", "sdpa", "sliding_window", "linear", "gla", "deltanet", "moba", "nsa"])
def test_nothing_reaches_another_sequence_and_nothing_is_computed_of_a_wrong_request(name):
    found = answers(name)
    assert tuple(found) == COLUMNS
    assert (found["T = 0"], found["batch 0"], found["no key visible"]) == ("refused", "empty", "0")
    assert found["cache full"] == "refused"
    assert not any("others'" in answer for answer in found.values())


def test_a_value_that_reaches_other_rows_is_seen():

    out = torch.zeros(2, 1, 9, 3)
    out[0, 0, 6] = torch.nan
    assert _spread(lambda: out) == "seen"
    out[0, 0, 1] = torch.inf
    assert _spread(lambda: out) == "sequence"
    out[1, 0, 8] = torch.nan
    assert _spread(lambda: out) == "others'"
