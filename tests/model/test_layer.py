"""The attention layer: cross-attention, the short convolution, head layout."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch

import attnzoo
from attnzoo import Mask, build, registry
from attnzoo.checks.subject import Subject
from attnzoo.errors import Refused, RequestError
from attnzoo.model import AttentionLayer
from attnzoo.model.config import ModelConfig
from attnzoo.model.projection import ShortConv
from attnzoo.positions import build_positions


def test_cross_attention_reads_the_context_only():
    layer = AttentionLayer(build("sdpa", n_heads=4, n_kv_heads=2, head_dim=8), ModelConfig(d_model=32))
    x, context = torch.randn(2, 5, 32), torch.randn(2, 11, 32)
    out = layer(x, Mask(causal=False), context=context)
    assert out.shape == (2, 5, 32)
    moved = x.clone()
    moved[:, 3] += 1
    assert torch.equal(layer(moved, Mask(causal=False), context=context)[:, :3], out[:, :3])
    padding = torch.arange(11).expand(2, -1) < 7
    other = context.clone()
    other[:, 7:] = 5.0
    hidden = [layer(x, Mask(causal=False, key_padding=padding), context=c) for c in (context, other)]
    torch.testing.assert_close(*hidden, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(hidden[0], layer(x, Mask(causal=False), context=context[:, :7]), atol=1e-6, rtol=1e-5)


def test_cross_attention_uses_the_same_projections_as_self_attention():
    layer = AttentionLayer(build("exact", n_heads=2, head_dim=4), ModelConfig(d_model=8))
    x = torch.randn(1, 6, 8)
    torch.testing.assert_close(layer(x, Mask(), context=x), layer(x, Mask()))


def test_cross_attention_has_no_cache():
    layer = AttentionLayer(build("sdpa", n_heads=2, head_dim=4), ModelConfig(d_model=8))
    x = torch.randn(1, 3, 8)
    with pytest.raises(RequestError, match="no cache"):
        layer(x, context=x, cache=layer.new_cache(1, 4))


def test_short_convolution_is_the_identity_at_first_and_causal_after():
    conv, x = ShortConv(6, 4), torch.randn(2, 9, 6)
    with torch.no_grad():
        conv.weight.zero_()[0] = 1
        assert torch.equal(conv(x, None, None), x)
        conv.weight.normal_()
        out = conv(x, None, None)
        by_hand = sum(conv.weight[w] * x[:, 5 - w] for w in range(4))
        torch.testing.assert_close(out[:, 5], by_hand)
        later = x.clone()
        later[:, 5:] = 9.0
        assert torch.equal(conv(later, None, None)[:, :5], out[:, :5])


def test_short_convolution_stops_at_documents():
    conv, x = ShortConv(6, 4), torch.randn(1, 9, 6)
    with torch.no_grad():
        conv.weight.normal_()
        packed = conv(x, None, torch.tensor([[4] * 5 + [2] * 4]))
        torch.testing.assert_close(packed[:, 5:], conv(x[:, 5:], None, None))
        later = conv(x[:, 6:], x[:, 3:6], torch.tensor([[4] * 5 + [2] * 4]))  # decoding: ids of all tokens so far
        torch.testing.assert_close(later, packed[:, 6:])


def test_a_convolution_of_width_one_keeps_nothing():
    cfg = ModelConfig(d_model=8, n_heads=2, short_conv=1)
    layer, x = AttentionLayer(build("exact", n_heads=2, head_dim=4), cfg), torch.randn(1, 5, 8)
    with torch.no_grad():
        layer.projection.conv.weight.normal_()
        cache = layer.new_cache(1, 5)
        decoded = torch.cat([layer(token, cache=cache) for token in x.split(1, 1)], 1)
        torch.testing.assert_close(decoded, layer(x))
    assert cache.nbytes == layer.cache_bytes(1, 5, torch.float32)


def test_tokens_that_a_full_cache_refuses_are_not_remembered():
    cfg = ModelConfig(d_model=8, n_heads=2, short_conv=3)
    layer, x = AttentionLayer(build("exact", n_heads=2, head_dim=4), cfg), torch.randn(1, 4, 8)
    with torch.no_grad():
        cache = layer.new_cache(1, 3)
        layer(x[:, :3], cache=cache)
        before = cache.conv.clone()
        with pytest.raises(RequestError, match="cache is full"):
            layer(x[:, 3:], cache=cache)
    assert before.any()
    assert torch.equal(cache.conv, before)


def test_the_input_reaches_a_rule_that_reads_it():
    seen = {}
    attention = build("exact", n_heads=2, head_dim=4)
    attention.attend = lambda q, k, v, mask, bias, x: seen.setdefault("x", x) is not None and q
    x = torch.randn(1, 3, 8)
    AttentionLayer(attention, ModelConfig(d_model=8))(x)
    assert seen["x"] is x


# -- options -----------------------------------------------------------------------------------------------------------


def exact_layer(**options) -> AttentionLayer:
    """Two heads of 4 over a width of 8, weights near 1."""
    layer = AttentionLayer(build("exact", n_heads=2, head_dim=4), ModelConfig(d_model=8, qk_norm=False, **options))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    return layer


def by_hand(layer: AttentionLayer, x: torch.Tensor, gate=1.0, norm=False, factor=0.5) -> torch.Tensor:
    """The layer written out, a head and a query at a time; gate (T, 2, 1 or 4), factor: of q·k, a number or (T,)."""
    q, k, v = layer.projection.qkv(x[0]).split(8, -1)
    n, rows = x.shape[1], []
    for i in range(n):
        heads = []
        for head in (slice(0, 4), slice(4, 8)):
            scores = q[i, head] @ k[: i + 1, head].T * torch.as_tensor(factor).expand(n)[i]
            out = scores.softmax(0) @ v[: i + 1, head]
            heads.append(layer.head_norm.weight * out / (out.square().mean() + 1e-6).sqrt() if norm else out)
        rows.append(torch.stack(heads))
    return layer.out((torch.stack(rows) * gate).flatten(1))[None]


@pytest.mark.parametrize(("kind", "width"), [("headwise", 1), ("elementwise", 4)])
def test_the_output_gate_multiplies_each_head_before_the_output_projection(kind, width):
    layer, x = exact_layer(output_gate=kind), torch.randn(1, 5, 8)
    gate = (x[0] @ layer.gate.weight.T).sigmoid().view(5, 2, width)
    torch.testing.assert_close(layer(x), by_hand(layer, x, gate))


def test_the_head_norm_comes_before_the_gate():
    layer, x = exact_layer(head_norm=True, output_gate="headwise"), torch.randn(1, 5, 8)
    gate = (x[0] @ layer.gate.weight.T).sigmoid().view(5, 2, 1)
    torch.testing.assert_close(layer(x), by_hand(layer, x, gate, norm=True), atol=1e-5, rtol=1e-5)


def test_log_n_multiplies_scores_by_the_log_of_what_a_query_sees():
    layer, x = exact_layer(scale="log_n"), torch.randn(1, 5, 8)
    torch.testing.assert_close(layer(x), by_hand(layer, x, factor=0.5 * torch.arange(1, 6).log()))
    padded, real = torch.cat([torch.randn(1, 3, 8), x], 1), torch.arange(8)[None] >= 3
    hidden = layer(padded, Mask(key_padding=real))
    torch.testing.assert_close(hidden[:, 3:], layer(x))
    hidden[:, 3:].square().sum().backward()  # padding sees no token: log(0) times 0 would reach every gradient
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    packed = layer(torch.cat([x, x], 1), Mask(documents=torch.tensor([[0] * 5 + [1] * 5])))
    torch.testing.assert_close(packed, layer(x).repeat(1, 2, 1))
    for mask, context in ((Mask(causal=False), None), (Mask(prefix=2), None), (Mask(), x)):
        with pytest.raises(RequestError, match="needs a causal mask"):
            layer(x, mask, context=context)


@pytest.mark.parametrize("name", [n for n in registry.list_backends() if registry.get(n).capabilities.products])
def test_log_n_is_a_scale_of_each_query(name):
    """The row of a query that sees n tokens is that of the definition with log(n) times the scale."""
    if attnzoo.why_not(name, n_heads=4, head_dim=8, training=False):
        pytest.skip("it does not run here")
    subject, n = Subject.of(name), 23
    heads, options = 1 if name == "mqa" else 4, dataclasses.asdict(subject.small)
    torch.manual_seed(0)
    attention = build(name, n_heads=4, n_kv_heads=heads, head_dim=8, d_model=16, **options).eval()
    layer = AttentionLayer(attention, ModelConfig(d_model=16, n_heads=4, scale="log_n", qk_norm=False))
    layer.out = torch.nn.Identity()
    x, scale = torch.randn(1, n, 16), attention.scale
    q, k, v = (3 * t.detach() for t in layer.projection(x, Mask(), None))
    layer.projection.forward = lambda *args, **how: (q, k, v)
    with torch.no_grad():
        found = layer(x).unflatten(2, (4, 8)).transpose(1, 2)
    definition = copy.deepcopy(attention).double()
    for i in range(n):
        definition.scale = scale * math.log(i + 1)
        expected = definition.reference(q, k, v, x=x)[0][:, :, i]
        torch.testing.assert_close(found[:, :, i].double(), expected, atol=1e-4, rtol=1e-4)  # float32 sums of n terms


def small(name: str = "sdpa", *overrides: str):
    sizes = ["model.d_model=32", "model.n_heads=4", "model.n_layers=2"]
    cfg = attnzoo.compose("train", [*sizes, *([] if name == "sdpa" else [f"attention={name}"]), *overrides])
    return attnzoo.build_model(cfg, 50).eval()


@pytest.mark.parametrize(("scale", "number"), [("null", 8**-0.5), ("1/D", 0.125), ("0.3", 0.3), ("log_n", 8**-0.5)])
def test_the_scale_reaches_the_backend(scale, number):
    attention = small("sdpa", f"model.scale={scale}").attention_modules()[0]
    assert attention.scale == pytest.approx(number)


@pytest.mark.parametrize("name", registry.list_backends())
def test_unless_told_otherwise_a_model_leaves_the_scale_to_the_backend(name):
    """differential divides by sqrt(D/2), the delta rules by 1: a model that says 1/sqrt(D) to all runs another rule."""
    attention = small(name).attention_modules()[0]
    sizes = {"n_heads": attention.n_heads, "n_kv_heads": attention.n_kv_heads, "head_dim": 8, "d_model": 32}
    assert attention.scale == attnzoo.build(name, **sizes).scale
    assert {"differential": 0.5, "deltanet": 1.0, "kda": 1.0, "gated_deltanet": 1.0}.get(
        name, 1 / math.sqrt(8)
    ) == attention.scale


OPTIONS = [["model.scale=log_n"], ["model.output_gate=headwise", "model.head_norm=true"], ["model.scale=1/D"]]


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
@pytest.mark.parametrize("name", ["sdpa", "sliding_window", "gla"])
def test_decoding_with_options_equals_the_parallel_pass(name, options):
    if name == "gla" and "model.scale=log_n" in options:
        with pytest.raises(Refused, match="log_n is not defined"):
            small(name, *options)
        return
    model, tokens = small(name, *options, "model.short_conv=3"), torch.randint(50, (2, 19))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        cache, full = model.new_cache(2, 19), model(tokens)
        parts = [model(part, cache=cache) for part in tokens.split([7, 1, 1, 9, 1], 1)]
    # float32 sums in another order through two layers
    torch.testing.assert_close(torch.cat(parts, 1), full, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", registry.list_backends())
def test_a_backend_multiplies_by_the_scale_or_refuses_one(name):
    if attnzoo.why_not(name, n_heads=4, head_dim=8, training=False):
        pytest.skip("it does not run here")
    if not registry.get(name).capabilities.scale:
        with pytest.raises(Refused, match="no scores that model"):
            small(name, "model.scale=0.1")
        return
    tokens = torch.randint(50, (1, 9))
    with torch.no_grad():
        assert not torch.allclose(small(name, "model.scale=0.1")(tokens), small(name, "model.scale=3")(tokens))


def test_what_the_options_cost_is_counted():
    plain, gated = small(), small("sdpa", "model.output_gate=elementwise", "model.head_norm=true")
    assert gated.parameter_count() - plain.parameter_count() == 2 * (32 * 32 + 8)
    assert gated.flops(10) - plain.flops(10) == 2 * 10 * 2 * 32 * 32
    assert gated.new_cache(1, 10).nbytes == plain.new_cache(1, 10).nbytes
    assert small("sdpa", "model.short_conv=3").flops(10) - plain.flops(10) == 2 * 10 * 2 * 3 * 96  # q, k and v


def test_options_that_make_no_sense_are_named():
    for override, says in {
        "model.scale=logn": "model.scale=logn: did you mean log_n?",
        "model.scale=-1": "model.scale=-1: must be more than 0",
        "model.output_gate=headwize": "did you mean headwise?",
    }.items():
        with pytest.raises(RequestError, match=says):
            attnzoo.compose("train", [override])


def test_queries_and_keys_have_gains_of_their_own():
    layer = AttentionLayer(build("exact", n_heads=2, head_dim=8), ModelConfig(d_model=16, n_heads=2))
    with torch.no_grad():
        layer.projection.k_norm.weight.zero_()
    q, k, _ = layer.projection(torch.randn(1, 5, 16), Mask(), None)
    assert q.any()
    assert not k.any()


def test_cross_attention_takes_no_positions_and_trains_what_reads_the_context():
    layer = AttentionLayer(build("exact", n_heads=2, head_dim=8), ModelConfig(d_model=16, n_heads=2))
    x, context, open_ = torch.randn(1, 5, 16), torch.randn(1, 7, 16), Mask(causal=False)
    phases = build_positions("rope", d_model=16, n_heads=2, head_dim=8, base=10000.0).phases(torch.arange(5)[None])
    out = layer(x, open_, context=context, phases=phases)
    assert torch.equal(out, layer(x, open_, context=context))
    assert torch.equal(
        out, layer(x, open_, context=context, bias=build_positions("alibi", d_model=16, n_heads=2, head_dim=4).bias())
    )
    out.square().sum().backward()
    assert layer.projection.qkv.weight.grad.any(1).all()
