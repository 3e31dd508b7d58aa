"""One query over fewer heads of keys: packed into rows, it must be what repeated keys give."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attnzoo.kernels import sdpa


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("batch", "heads", "kv_heads"), [(1, 8, 1), (2, 8, 2), (1, 6, 2), (1, 4, 4), (3, 2, 1)])
@pytest.mark.parametrize("masked", [None, "shared", "by head"])
def test_packed_queries_see_the_keys_of_their_group(monkeypatch, threads, batch, heads, kv_heads, masked):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    q = torch.randn(batch, heads, 1, 8, dtype=torch.float64)
    k, v = (torch.randn(batch, kv_heads, 11, 8, dtype=torch.float64) for _ in range(2))
    mask = None if masked is None else torch.rand(batch, 1 if masked == "shared" else heads, 1, 11) < 0.7
    if mask is not None:
        mask[..., 0] = True
    out, _ = sdpa.call(q, k, v, mask, False, scale=0.3)
    wide = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
    torch.testing.assert_close(out, scaled_dot_product_attention(q, *wide, attn_mask=mask, scale=0.3))


def test_keys_are_read_once_where_there_are_threads_enough(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    one, two = torch.zeros(1, 8, 1, 4), torch.zeros(2, 8, 1, 4)
    assert sdpa._packed(two, torch.zeros(2, 1, 9, 4), None).shape == (2, 1, 8, 4)
    assert sdpa._packed(one, torch.zeros(1, 1, 9, 4), None).shape == (1, 2, 4, 4)
    assert sdpa._packed(one, torch.zeros(1, 4, 9, 4), None).shape == (1, 4, 2, 4)
    assert sdpa._packed(one, torch.zeros(1, 8, 9, 4), None) is None
    assert sdpa._packed(one.expand(1, 8, 2, 4), torch.zeros(1, 1, 9, 4), None) is None
