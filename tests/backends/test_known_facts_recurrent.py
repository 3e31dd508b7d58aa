"""Facts that tie the recurrent rules to one another and to their limits, and public bug reports about their kind."""

from __future__ import annotations

import math

import pytest
import torch

import attnzoo
from attnzoo.masks import Mask

RULES = ["retention", "gla", "mamba2", "deltanet", "gated_deltanet", "kda", "performer", "based"]
SIZES = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "d_model": 12}
# float64; the same sums in another order
CLOSE = {"atol": 1e-10, "rtol": 1e-9}


def build(name, **options):
    torch.manual_seed(1)
    return attnzoo.build(name, **SIZES, **options).double()


def inputs(n, batch=2, dtype=torch.float64):
    g = torch.Generator().manual_seed(2)
    shapes = (batch, 4, n, 8), (batch, 2, n, 8), (batch, 2, n, 8), (batch, n, 12)
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


def run(module, q, k, v, x, mask=Mask()):
    with torch.no_grad():
        return module(q, k, v, mask, x=x if module.capabilities.needs_x else None)


def test_retention_without_decay_or_normaliser_is_unnormalised_linear_attention():
    q, k, v, x = inputs(50)
    out = run(build("retention", decay=1.0, normalise=False, chunk=16), q, k, v, x)
    k, v = (t.repeat_interleave(2, 1) for t in (k, v))
    torch.testing.assert_close(out, (q @ k.mT / math.sqrt(8)).tril() @ v, **CLOSE)


def test_gla_with_open_gates_is_retention_without_decay():
    q, k, v, x = inputs(50)
    gla = build("gla", chunk=16)
    gla.gate.bias.data.fill_(math.inf)  # σ(∞) = 1
    right = run(build("retention", decay=1.0, normalise=False, chunk=16), q, k, v, x)
    torch.testing.assert_close(run(gla, q, k, v, x), right, **CLOSE)


def test_mamba2_with_a_constant_step_is_retention():
    q, k, v, x = inputs(50)
    mamba, step, rate = build("mamba2", chunk=16), 0.05, 2.0
    mamba.gate.up.weight.data.zero_()
    mamba.gate.bias.data.fill_(math.log(math.expm1(step)))
    mamba.gate.log_rate.data.fill_(math.log(rate))
    right = step * run(build("retention", decay=math.exp(-rate * step), normalise=False, chunk=16), q, k, v, x)
    torch.testing.assert_close(run(mamba, q, k, v, x), right, **CLOSE)


def test_gated_deltanet_with_gate_one_is_deltanet():
    q, k, v, x = inputs(50)
    plain, gated = build("deltanet", chunk=16), build("gated_deltanet", chunk=16)
    gated.beta.load_state_dict(plain.beta.state_dict())
    gated.gate.log_rate.data.fill_(-math.inf)  # A = 0
    torch.testing.assert_close(run(gated, q, k, v, x), run(plain, q, k, v, x), **CLOSE)


def test_kda_with_equal_channels_is_gated_deltanet():
    q, k, v, x = inputs(50)
    gated, kda = build("gated_deltanet", chunk=16), build("kda", chunk=16, rank=12)
    kda.beta.load_state_dict(gated.beta.state_dict())
    kda.gate.log_rate.data.copy_(gated.gate.log_rate)
    kda.gate.down.weight.data.copy_(torch.eye(12))
    kda.gate.up.weight.data.copy_(gated.gate.up.weight.repeat_interleave(8, 0))
    kda.gate.bias.data.copy_(gated.gate.bias.repeat_interleave(8))
    torch.testing.assert_close(run(kda, q, k, v, x), run(gated, q, k, v, x), **CLOSE)


@pytest.mark.parametrize("name", ["deltanet", "gated_deltanet", "kda"])
def test_the_delta_rule_returns_the_last_value_written_under_a_key(name):
    """With β = 1 and no decay: keys that are orthogonal do not disturb one another, one written again is replaced."""
    rule = build(name, chunk=4)
    rule.beta.bias.data.fill_(math.inf)
    if hasattr(rule, "gate"):
        rule.gate.log_rate.data.fill_(-math.inf)
    _, _, v, x = inputs(8)
    which = torch.tensor([0, 1, 2, 3, 1, 0, 2, 2])
    k = 3 * torch.eye(8, dtype=torch.float64)[which].expand(2, 2, -1, -1)
    asked = torch.tensor([0, 0, 1, 2, 3, 1, 0, 3])
    q = torch.eye(8, dtype=torch.float64)[asked].expand(2, 4, -1, -1)
    out = run(rule, q, k, v, x)
    for t, key in enumerate(asked):
        last = max(j for j in range(t + 1) if which[j] == key)
        # lengths are 1 up to the ε = 1e-6 inside the square root
        torch.testing.assert_close(out[:, ::2, t], v[:, :, last], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", RULES)
def test_the_chunk_does_not_change_the_result(name):
    q, k, v, x = inputs(70)
    documents = torch.tensor([[0] * 20 + [1] * 50, [0] * 33 + [1] * 37])
    padding = torch.rand(2, 70, generator=torch.Generator().manual_seed(3)) > 0.2
    for mask in (Mask(), Mask(documents=documents, key_padding=padding)):
        outs = [run(build(name, chunk=chunk), q, k, v, x, mask) for chunk in (1, 16, 64)]
        torch.testing.assert_close(outs[1], outs[0], **CLOSE)
        torch.testing.assert_close(outs[2], outs[0], **CLOSE)


@pytest.mark.parametrize("name", RULES)
def test_padding_anywhere_changes_nothing_for_the_real_tokens(name):
    """A padded token neither decays nor writes the state, so that even holes leave the rest as without them."""
    q, k, v, x = inputs(30)
    module, real = build(name, chunk=8), torch.ones(2, 30, dtype=torch.bool)
    real[:, [0, 1, 5, 11, 12, 29]] = False
    if name == "based":
        module = build(name, chunk=8, window=0)  # a window counts slots
    out = run(module, q, k, v, x, Mask(key_padding=real))
    kept = [t[:, :, real[0]] for t in (q, k, v)]
    torch.testing.assert_close(out[:, :, real[0]], run(module, *kept, x[:, real[0]]), **CLOSE)


@pytest.mark.parametrize("options", [{"name": "performer"}, {"name": "based", "window": 0}, {"name": "based"}])
def test_the_normaliser_sums_over_time(options):
    """fla #850: with q = k = 0 every head gives the running mean of v. performer-pytorch #40: with v = 1 it gives 1."""
    q, k, v, x = inputs(40)
    module = build(options.pop("name"), chunk=16, **options)
    mean = v.cumsum(2) / torch.arange(1, 41)[:, None]
    torch.testing.assert_close(run(module, 0 * q, 0 * k, v, x), mean.repeat_interleave(2, 1), **CLOSE)
    torch.testing.assert_close(run(module, q, k, torch.ones_like(v), x), torch.ones_like(q), **CLOSE)


@pytest.mark.parametrize("name", RULES)
def test_resuming_from_the_cache_is_one_call(name):
    """fla PR 268: a state cached without its sum of keys; here split 128/128, in float32."""
    q, k, v, x = inputs(256, batch=1, dtype=torch.float32)
    module = build(name).float()
    x = x if module.capabilities.needs_x else None
    with torch.no_grad():
        whole = module(q, k, v, x=x)
        cache, parts = module.new_cache(1, 256), []
        for cut in (slice(0, 128), slice(128, 256)):
            part = None if x is None else x[:, cut]
            parts.append(module.extend(q[:, :, cut], k[:, :, cut], v[:, :, cut], cache, x=part))
    # float32 sums over 256 tokens
    torch.testing.assert_close(torch.cat(parts, 2), whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["retention", "gla", "kda"])
def test_compiled_is_eager(name):
    """fla #52: a compiled chunk kernel that differs. Forward and backward, traced and differentiated ahead of time."""
    module = build(name, chunk=16)
    results = []
    for call in (module, torch.compile(module, backend="aot_eager")):
        leaves = [t.requires_grad_() for t in inputs(40)]
        x = leaves[3] if module.capabilities.needs_x else None
        call(*leaves[:3], x=x).square().sum().backward()
        results.append([t.grad for t in leaves if t.grad is not None])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, **CLOSE)
