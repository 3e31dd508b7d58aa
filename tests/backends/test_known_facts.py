"""Where one variant must give the numbers of another: equalities that follow from the equations."""

from __future__ import annotations

import math

import pytest
import torch

import attnzoo
from attnzoo import Mask

T, D = 41, 8
# float32: the same sums in another order, over values near 1
CLOSE = {"atol": 2e-6, "rtol": 1e-5}


def inputs(heads=4, kv_heads=4, tokens=T, dim=D):
    g = torch.Generator().manual_seed(7)
    shapes = ((heads, tokens, dim), (kv_heads, tokens, dim), (kv_heads, tokens, dim))
    return [torch.randn(2, *shape, generator=g, requires_grad=True) for shape in shapes]


def masks():
    padding = torch.ones(2, T, dtype=torch.bool)
    padding[0, :5] = False
    documents = torch.arange(T)[None] // 13
    return [
        Mask(),
        Mask(window=6),
        Mask(key_padding=padding),
        Mask(documents=documents),
        Mask(causal=False),
        Mask(prefix=3),
    ]


def same(first, second, given, mask=None):
    """Outputs and gradients of two modules agree."""
    mask = mask or Mask()
    a, b = first(*given, mask), second(*given, mask)
    torch.testing.assert_close(a, b, **CLOSE)
    weight = torch.linspace(-1, 1, a.numel()).view_as(a)
    left, right = (torch.autograd.grad((out * weight).sum(), given) for out in (a, b))
    for one, other in zip(left, right, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def build(name, **options):
    torch.manual_seed(0)
    return attnzoo.build(name, n_heads=4, n_kv_heads=4, head_dim=D, **options)


@pytest.mark.parametrize("mask", masks(), ids=str)
def test_streaming_without_sinks_is_the_sliding_window(mask):
    same(build("streaming", sinks=0, window=5), build("sliding_window", window=5), inputs(), mask)


@pytest.mark.parametrize("window", [T, T + 1, 200])
def test_a_window_as_long_as_the_sequence_is_exact(window):
    same(build("sliding_window", window=window), build("exact"), inputs())


def test_streaming_whose_sinks_and_window_cover_the_sequence_is_exact():
    same(build("streaming", sinks=T - 5, window=5), build("exact"), inputs())


def test_dilation_1_is_the_sliding_window():
    same(build("dilated_window", window=5, dilation=1), build("sliding_window", window=5), inputs())


def test_one_chunk_is_exact():
    same(build("chunked_local", chunk=T), build("exact"), inputs())


def maskings():
    """The masks that rules with summaries of past blocks take."""
    return [m for m in masks() if m.fields <= {"key_padding", "documents"}]


@pytest.mark.parametrize("mask", maskings(), ids=str)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_moba_with_all_blocks_is_exact(mask, kv_heads):
    how = {"n_heads": 4, "n_kv_heads": kv_heads, "head_dim": D}
    same(attnzoo.build("moba", **how, block=4, topk=T), attnzoo.build("exact", **how), inputs(kv_heads=kv_heads), mask)


def test_moba_with_one_block_is_exact():
    same(build("moba", block=64), build("exact"), inputs())


@pytest.mark.parametrize("mask", maskings(), ids=str)
def test_nsa_with_the_window_alone_is_the_sliding_window(mask):
    module = build("nsa", d_model=16, compressed=False, selected=0, window=5)
    given, x = inputs(), torch.randn(2, T, 16)
    same(lambda *a: module(*a, x=x), build("sliding_window", window=5), given, mask)


@pytest.mark.parametrize("mask", maskings(), ids=str)
def test_nsa_with_all_blocks_selected_alone_is_exact(mask):
    module = build("nsa", d_model=16, block=4, compressed=False, selected=T, window=0)
    given, x = inputs(), torch.randn(2, T, 16)
    same(lambda *a: module(*a, x=x), build("exact"), given, mask)


@pytest.mark.parametrize("mask", maskings(), ids=str)
def test_hierarchical_with_two_blocks_is_exact(mask):
    same(build("hierarchical", block=-(-T // 4) * 2), build("exact"), inputs(), mask)


@pytest.mark.parametrize("mask", masks(), ids=str)
def test_gqa_with_as_many_heads_is_exact(mask):
    same(build("gqa"), build("exact"), inputs(), mask)


@pytest.mark.parametrize("mask", masks(), ids=str)
@pytest.mark.parametrize("later", [False, True])
def test_a_sink_logit_of_minus_infinity_is_exact(mask, later):
    sink = build("sink_logit", init=0.0 if later else -math.inf)
    with torch.no_grad():
        sink.logit.fill_(-math.inf)
    same(sink, build("exact"), inputs(), mask)
    q, k, v = (t.detach() for t in inputs())
    with torch.no_grad():
        torch.testing.assert_close(sink(q[:, :, -1:], k, v), build("exact")(q, k, v)[:, :, -1:], **CLOSE)


def test_a_sink_logit_of_0_is_the_off_by_one_softmax():
    given, sink = inputs(), build("sink_logit")
    q, k, v = given
    scores = (q @ k.mT / math.sqrt(D)).masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf).exp()
    torch.testing.assert_close(sink(*given), scores / (1 + scores.sum(-1, keepdim=True)) @ v, **CLOSE)


@pytest.mark.parametrize("mask", masks(), ids=str)
def test_a_huge_softcap_is_exact(mask):
    same(build("softcap", cap=1e6, tile=16), build("exact"), inputs(), mask)


@pytest.mark.parametrize("mask", masks(), ids=str)
def test_differential_with_lambda_0_is_exact_on_the_first_half_of_the_channels(mask):
    module = build("differential", lambda_init=0.0, norm=False)
    with torch.no_grad():
        module.lambdas.zero_()
    q, k, v = inputs()
    half = attnzoo.build("exact", n_heads=4, head_dim=D // 2)
    torch.testing.assert_close(module(q, k, v, mask), half(q[..., ::2], k[..., ::2], v, mask), **CLOSE)


def test_forgetting_nothing_is_exact():
    torch.manual_seed(0)
    module = attnzoo.build("forgetting", n_heads=4, n_kv_heads=4, head_dim=D, d_model=16, tile=8)
    with torch.no_grad():
        module.gate.bias.fill_(40.0)  # log f = -4e-18
    given, x = inputs(), torch.randn(2, T, 16)
    torch.testing.assert_close(module(*given, x=x), build("exact")(*given), **CLOSE)


def test_forgetting_by_a_fixed_gate_is_a_linear_bias():
    """log f the same everywhere: the score falls by it for each token between, as with ALiBi."""
    torch.manual_seed(0)
    module = attnzoo.build("forgetting", n_heads=4, n_kv_heads=4, head_dim=D, d_model=16, tile=8)
    with torch.no_grad():
        module.gate.weight.zero_()
    q, k, v = inputs()
    distance = torch.arange(T)[:, None] - torch.arange(T)[None]
    scores = (q @ k.mT / math.sqrt(D) - math.log(2) * distance).masked_fill(distance < 0, -math.inf)
    torch.testing.assert_close(module(q, k, v, x=torch.randn(2, T, 16)), scores.softmax(-1) @ v, **CLOSE)
