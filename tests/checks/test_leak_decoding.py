"""Leaks and slips in decoding, each caught by the leak test's comparison with the full pass."""

from __future__ import annotations

import pytest
import torch
from leaky_models import T, V, found, lm
from torch.nn import functional as F

from attnzoo import Attention, Capabilities, leak_test
from attnzoo.checks.leak_decoding import splits
from attnzoo.checks.leak_rounding import explained
from attnzoo.contract import KVCache
from attnzoo.kernels.ring import RingCache


def wrong_cache(monkeypatch, cls, **methods):
    for name, method in methods.items():
        monkeypatch.setattr(cls, name, method)


def test_decoding_that_ignores_the_window_is_caught(monkeypatch):
    model = lm("exact")
    window = 5
    for attention in model.attention_modules():
        attend = attention.attend

        def windowed(q, k, v, mask, bias, x, attend=attend):
            n = k.shape[2]
            i, j = torch.arange(n - q.shape[2], n)[:, None], torch.arange(n)[None, :]
            near = (j <= i) & (j > i - window)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=near)

        monkeypatch.setattr(attention, "attend", windowed)
        monkeypatch.setattr(
            attention,
            "attend_cached",
            lambda q, k, v, cache, mask, bias, x, attend=attend: attend(q, *cache.append(k, v), mask, bias, x),
        )
    report = leak_test(model, vocab_size=V, n_tokens=T)
    assert found(report) == {"decoding"}, report
    assert report["decoding"].first_leaking_position == window


def test_a_position_one_too_far_at_the_second_layer_is_caught(monkeypatch):
    model = lm("exact")
    second = model.blocks[1].attention
    forward = type(second).forward

    def shifted(self, x, mask=None, *, phases=None, cache=None, **rest):
        if self is second and cache is not None and cache.length:
            cos, sin = phases
            turn = 1.0 / 10000 ** (torch.arange(cos.shape[-1]) / cos.shape[-1])  # one position further
            phases = (cos * turn.cos() - sin * turn.sin(), sin * turn.cos() + cos * turn.sin())
        return forward(self, x, mask, phases=phases, cache=cache, **rest)

    monkeypatch.setattr(type(second), "forward", shifted)
    assert found(leak_test(model, vocab_size=V, n_tokens=T)) == {"decoding"}


def test_every_decoded_token_at_position_zero_is_caught(monkeypatch):
    import attnzoo.model.lm as module

    monkeypatch.setattr(module, "position_ids", lambda start, n, mask, device: torch.arange(n)[None])
    assert found(leak_test(lm("sdpa"), vocab_size=V, n_tokens=T)) == {"decoding"}


def test_a_ring_that_overwrites_too_early_is_caught(monkeypatch):
    store = RingCache.store

    def early(self, k, v):
        slots = RingCache.slots.fget(self)
        monkeypatch.setattr(RingCache, "slots", property(lambda self: max(slots - 1, 1)))
        store(self, k, v)
        monkeypatch.setattr(RingCache, "slots", property(lambda self: self.keys.shape[2]))

    monkeypatch.setattr(RingCache, "store", early)
    assert found(leak_test(lm("sliding_window", {"window": 7}), vocab_size=V, n_tokens=T)) == {"decoding"}


def test_a_cache_that_forgets_its_length_is_caught(monkeypatch):
    append = KVCache.append

    def stale(self, k, v):
        views = append(self, k, v)
        self.length = max(self.length - (self.length > 9), 0)
        return views

    monkeypatch.setattr(KVCache, "append", stale)
    report = leak_test(lm("exact"), vocab_size=V, n_tokens=T)
    assert found(report) == {"decoding"}
    assert "the cache says it holds" in report["decoding"].detail


@pytest.mark.parametrize("n_tokens", [2, 3, 17, 64, 129, 300, 1000])
def test_splits_cover_every_token_in_chunks_and_singly(n_tokens):
    ways = splits(n_tokens)
    assert all(sum(way) == n_tokens and min(way) > 0 for way in ways)
    assert any(way[-1] == 1 and way[0] > 1 for way in ways) or n_tokens == 2
    assert any(way[:2] == [1, 1] for way in ways)


# -- how far rounding may take the two apart -------------------------------------------------------------------------------


class Amplifies(Attention):
    """relu(S)³ over its sum, of scores that cancel: small sums magnify their rounding many times."""

    source = "a test"
    capabilities = Capabilities(dropout=False)

    def weights(self, q, k, visible, bias, x):
        scores = (q @ k.mT + 300.0) - 300.0
        kept = scores.relu().pow(3).masked_fill(~visible, 0.0)
        return kept / kept.sum(-1, keepdim=True).clamp(min=1e-12)


class NarrowAmplifies(Amplifies):
    """The same, which has no float64: its definition stands for it there."""

    capabilities = Capabilities(dropout=False, dtypes=(torch.float32, torch.bfloat16))


def with_attention(cls):
    model = lm("exact")
    for block in model.blocks:
        old = block.attention.attention
        block.attention.attention = cls(n_heads=old.n_heads, head_dim=old.head_dim)
    return model


@pytest.mark.parametrize("cls", [Amplifies, NarrowAmplifies])
@pytest.mark.parametrize("seed", range(3))
def test_rounding_that_a_rule_amplifies_is_no_fault(cls, seed):
    """Each way lies as far from float64 as from the other."""
    model = with_attention(cls)
    report = leak_test(model, vocab_size=V, n_tokens=40, seed=seed)
    assert report.passed, report
    assert not report.failed, report


def test_a_fault_of_decoding_is_none_of_rounding_and_no_leak():
    model = lm("exact")
    for attention in model.attention_modules():
        attend = attention.attend_cached
        attention.attend_cached = lambda q, k, v, *rest, attend=attend: attend(q, k, v, *rest) * (1 + 1e-4)
    report = leak_test(model, vocab_size=V, n_tokens=T)
    assert found(report) == {"decoding"}
    assert report.passed
    assert report.verdict == "decoding differs"
    assert "decoding differs" in report["decoding"].detail
    assert "FAILED, decoding differs" in str(report)
    assert report.to_dict()["verdict"] == "decoding differs"


def test_what_the_measurement_touches_is_as_before():
    model = with_attention(NarrowAmplifies)
    before, tokens = {n: t.clone() for n, t in model.state_dict().items()}, torch.randint(V, (2, 9))
    with torch.no_grad():
        logits = model(tokens)
        wide = explained(model, [model], tokens, logits, torch.finfo(torch.float32).eps, 0)
        assert torch.equal(model(tokens), logits)
    assert 0 < wide < 1e-3
    assert all(torch.equal(t, before[n]) and t.dtype == before[n].dtype for n, t in model.state_dict().items())
    assert "forward" not in vars(model.attention_modules()[0])


def test_a_module_without_float64_has_the_usual_bound_alone():
    def only_float32(tokens):
        raise RuntimeError("no kernel for Double")

    logits = torch.randn(1, 3, V)
    assert explained(only_float32, [], torch.zeros(1, 3, dtype=torch.long), logits, 1e-7, 0) == 0.0
