"""FlexAttention behind other backends: their patterns and score changes, uncompiled on a CPU, against their definitions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.attention.flex_attention as library
from torch._dynamo.testing import CompileCounterWithBackend

import attnzoo
from attnzoo import Mask
from attnzoo.checks import Subject
from attnzoo.checks.cases import DistanceBias
from attnzoo.checks.report import PASSED, SKIPPED
from attnzoo.checks.suite import all_checks, run_check
from attnzoo.kernels import flex
from attnzoo.kernels.flex import static_block_mask
from attnzoo.masks.translate import flex_mask_mod
from attnzoo.positions.alibi import AlibiBias
from attnzoo.positions.relative import RelativeBias

BACKENDS = {  # the first word is the name
    "sliding_window": {"window": 3}, "streaming": {"window": 3, "sinks": 2}, "dilated_window": {"window": 2, "dilation": 3},
    "chunked_local": {"chunk": 4}, "block_sparse": {"block": 2}, "softcap": {"cap": 0.5}, "sink_logit": {"init": 0.3},
    "sink_logit windowed": {"init": 0.3, "window": 3}, "sink_logit closed": {"init": -torch.inf},
}  # fmt: skip
T = 13
DOCUMENTS = torch.tensor([[0] * 4 + [1] * 9, [2] * 13])
PADDING = torch.tensor([[True] * 13, [False] * 13])


def qkv():
    torch.manual_seed(0)
    return torch.randn(2, 4, T, 8), torch.randn(2, 2, T, 8), torch.randn(2, 2, T, 8)


def built(name: str):
    return attnzoo.build(name.split()[0], n_heads=4, n_kv_heads=2, head_dim=8, kernel="flex", **BACKENDS[name])


@pytest.mark.parametrize("name", BACKENDS)
@torch.no_grad()
def test_it_is_the_definition(name):
    module, (q, k, v) = built(name), qkv()
    for mask in (Mask(), Mask(window=4, sinks=1, documents=DOCUMENTS), Mask(key_padding=PADDING)):
        for bias in (None, AlibiBias(4)):
            right = module.reference(q, k, v, mask, bias)[0]
            # float32 sums of 8 products and 13 weights
            torch.testing.assert_close(module(q, k, v, mask, bias).double(), right, rtol=1e-5, atol=1e-6)
    assert module.kernel == "flex/eager"


@pytest.mark.parametrize("name", BACKENDS)
@torch.no_grad()
def test_it_goes_on_from_a_cache(name):
    module, (q, k, v), cache = built(name), qkv(), built(name).new_cache(2, T)
    outs, bias = [], AlibiBias(4)
    for now in (slice(0, 5), slice(5, 9), slice(9, 12), slice(12, 13)):
        mask = Mask(documents=DOCUMENTS[:, : now.stop])
        outs.append(module.extend(q[:, :, now], k[:, :, now], v[:, :, now], cache, mask, bias))
    right = module.reference(q, k, v, Mask(documents=DOCUMENTS), bias)[0]
    torch.testing.assert_close(torch.cat(outs, 2).double(), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", BACKENDS)
def test_training_on_a_cpu_is_refused(name):
    name = name.split()[0]
    assert attnzoo.why_not(name, kernel="flex", training=False) == []
    assert "no backward on cpu" in attnzoo.why_not(name, kernel="flex")[0]
    assert "cannot drop" in attnzoo.why_not(name, kernel="flex", dropout=0.1)[0]


@torch.no_grad()
def test_layers_share_a_block_mask_and_other_options_do_not():
    static_block_mask.cache_clear()
    q, k, v = qkv()
    for window in (3, 3, 5):
        attnzoo.build("sliding_window", n_heads=4, n_kv_heads=2, head_dim=8, kernel="flex", window=window)(q, k, v)
    found = static_block_mask.cache_info()
    assert (found.misses, found.hits) == (2, 1)


def test_positions_of_the_columns():
    """Keys 2, 3 and 7 of a sequence, the last two of which ask."""
    at = torch.tensor([2, 3, 7])
    seen = flex_mask_mod(Mask(window=5), 2, 3, lambda i, j: j != 2, at)
    zero = torch.tensor(0)
    grid = [[bool(seen(zero, zero, torch.tensor(i), torch.tensor(j))) for j in range(3)] for i in range(2)]
    assert grid == [[False, True, False], [False, True, True]]


@pytest.fixture
def graphs(monkeypatch):
    """What FlexAttention is compiled to, traced alone: how many graphs each compiled function has."""
    made, compile_ = [], torch.compile

    def traced(function, **how):
        made.append(CompileCounterWithBackend("eager"))
        return compile_(function, **{**how, "backend": made[-1]})

    flex._compiled.cache_clear()
    monkeypatch.setattr(torch, "compile", traced)
    with torch._dynamo.config.patch(recompile_limit=4):
        yield lambda: [counter.frame_count for counter in made]
    flex._compiled.cache_clear()
    torch._dynamo.reset()


@torch.no_grad()
def test_masks_that_differ_in_numbers_alone_are_one_graph(graphs):
    attn = attnzoo.build("flex", n_heads=2, head_dim=8, kernel="compiled")
    for n in (530, 700):
        q, k, v = torch.randn(3, 3, 2, n, 8)
        for mask in (Mask(), Mask(window=9, sinks=2), Mask(prefix=4), Mask(causal=False)):
            for start in (0, 11):  # more keys than queries
                out = attn(q[:, :, start:].contiguous(), k, v, mask)
                right = attn.reference(q[:, :, start:], k, v, mask)[0]
                torch.testing.assert_close(out.double(), right, rtol=1e-5, atol=1e-6)
    assert graphs() == [2]  # as many queries as keys is a graph apart


def test_the_quick_check_stays_within_a_low_limit_of_graphs(graphs):
    subject = Subject.of("flex", kernel="compiled", shrink=False)
    for one in all_checks(quick=True):
        if one.name in ("worked_numbers", "mask_fields", "outputs_kept"):
            assert {r.status for r in run_check(subject, one, quick=True)} <= {PASSED, SKIPPED}
    assert sum(graphs()) > 10
    assert max(graphs()) <= 4


@torch.no_grad()
def test_padding_and_documents_are_one_block_mask_a_mask(monkeypatch):
    calls, create = [], library.create_block_mask
    monkeypatch.setattr(library, "create_block_mask", lambda *a, **named: calls.append(1) or create(*a, **named))
    layers, (q, k, v) = [attnzoo.build("flex", n_heads=4, n_kv_heads=2, head_dim=8) for _ in range(3)], qkv()
    padding = PADDING.clone()
    for mask in (Mask(key_padding=padding), Mask(documents=DOCUMENTS, window=3)):
        calls.clear()
        for layer in layers:
            out = layer(q, k, v, mask)
        torch.testing.assert_close(out.double(), layer.reference(q, k, v, mask)[0], rtol=1e-5, atol=1e-6)
        assert len(calls) == 1
        layer(q[:, :, 3:], k, v, mask)
        assert len(calls) == 2, "the block mask of other lengths"
    mask = Mask(key_padding=padding)
    layer(q, k, v, mask)
    calls.clear()
    padding.logical_not_()
    torch.testing.assert_close(layer(q, k, v, mask).double(), layer.reference(q, k, v, mask)[0], rtol=1e-5, atol=1e-6)
    assert len(calls) == 1, "the block mask of what the padding was"


@pytest.mark.slow
@torch.no_grad()
def test_compiled_for_a_cpu_it_is_the_definition(request):
    """With the code that torch generates, and not as traced: a bias that it cannot compile is an error there alone."""
    if not request.config.getoption("--slow"):
        pytest.skip("compiles for a minute; --slow")
    attn, table = attnzoo.build("flex", n_heads=4, n_kv_heads=2, head_dim=16, kernel="compiled"), RelativeBias(4, 8, 32)
    table.table.data.normal_()
    for bias, kernel in ((None, ""), (AlibiBias(4), ""), (table, ""), (DistanceBias(4), "+bias")):
        for mask in (Mask(), Mask(window=20, sinks=3), Mask(causal=False)):
            q, k, v = torch.randn(2, 4, 200, 16), torch.randn(2, 2, 200, 16), torch.randn(2, 2, 200, 16)
            right = attn.reference(q, k, v, mask, bias)[0]
            torch.testing.assert_close(attn(q, k, v, mask, bias).double(), right, rtol=1e-5, atol=1e-5)
            assert attn.kernel == f"flex/compiled{kernel}"
