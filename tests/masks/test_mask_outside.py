"""Positions that no token has."""

from __future__ import annotations

import torch

from attnzoo import Mask


def test_positions_outside_the_documents_see_and_show_nothing():
    mask = Mask(
        causal=False, documents=torch.zeros(1, 3, dtype=torch.long)
    )  # id 0: what a missing id must not pass for
    i, j = torch.tensor([-1, 0, 2, 3])[:, None], torch.tensor([-1, 1, 3])[None, :]
    assert mask.at(i, j)[0].tolist() == [[False] * 3, [False, True, False], [False, True, False], [False] * 3]
