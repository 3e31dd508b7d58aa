"""The form that sums take on CUDA, on a CPU: the same numbers. That they are taken there is in tests/fake_cuda."""

from __future__ import annotations

import torch

from attnzoo.kernels.sums import add_blocks, add_rows, in_every_row


def test_blocks_of_every_row_land_where_they_belong():
    draw = torch.Generator().manual_seed(0)
    index = torch.randint(5, (9,), generator=draw)
    blocks = torch.randint(100, (2, 3, 9, 4), generator=draw).double()  # sums of whole numbers, in any order
    along, flat = torch.zeros(2, 3, 5, 4).double(), torch.zeros(2, 3, 5, 4).double()
    add_blocks(along, index, blocks)
    flat.flatten(0, 2).index_put_((in_every_row(flat, index),), blocks.flatten(0, 2), accumulate=True)
    rows = torch.zeros(30, 4).double()
    add_rows(rows, in_every_row(flat, index), blocks.flatten(0, 2))
    assert torch.equal(along, flat)
    assert torch.equal(along.flatten(0, 2), rows)
    assert along.sum() == blocks.sum()
