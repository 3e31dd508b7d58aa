"""Planted leaks, each caught by the test that should catch it; correct models pass."""

from __future__ import annotations

import functools
import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnzoo import CausalLM, RequestError, leak_test
from attnzoo.checks.canary import entropy_canary
from attnzoo.checks.leak import default_cuts
from attnzoo.checks.leak_decoding import splits
from attnzoo.contract import KVCache
from attnzoo.kernels.ring import RingCache
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig

V, T, C, H = 19, 24, 32, 2
LATE = T // 2 - 1  # the row of the leaks that concern one row


class TinyLM(nn.Module):
    """A GPT as it stands in many a repository; ``mix`` (q, k, v) -> out is its attention, causal unless replaced."""

    def __init__(self, mix=None, front=None, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions = nn.Embedding(V, C), nn.Embedding(160, C)
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.norm, self.mlp = nn.LayerNorm(C), nn.Sequential(nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C))
        self.head, self.dropout = nn.Linear(C, V), nn.Dropout(dropout)
        self.mix, self.front = mix or causal, front

    def forward(self, tokens):
        h = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        if self.front is not None:
            h = self.front(self, tokens, h)
        q, k, v = (t.unflatten(-1, (H, -1)).transpose(1, 2) for t in self.qkv(self.norm(h)).chunk(3, -1))
        h = h + self.dropout(self.out(self.mix(q, k, v).transpose(1, 2).flatten(2)))
        return self.head(h + self.mlp(h))


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def seeing(visible):
    """Attention over ``visible(i, j, T)``."""

    def mix(q, k, v):
        n = q.shape[2]
        i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible(i, j, n) & (i >= 0) & (j >= 0))

    return mix


def future_normaliser(q, k, v):
    weights = (q @ k.mT).exp()
    return weights.tril() @ v / weights.sum(-1, keepdim=True)


def top_k_with_future(q, k, v):
    scores = q @ k.mT
    chosen = scores >= scores.topk(4, -1).values[..., -1:]  # the future competes for the places
    own = torch.eye(q.shape[2], dtype=torch.bool)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(chosen | own).tril())


def linear_chunks(q, k, v, c=8):
    """Linear attention whose carried state already holds the chunk that is being computed."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    parts, state = [], 0
    for start in range(0, q.shape[2], c):
        part = slice(start, start + c)
        state = state + k[:, :, part].mT @ v[:, :, part]
        parts.append((q[:, :, part] @ k[:, :, part].mT).tril() @ v[:, :, part] + q[:, :, part] @ state)
    return torch.cat(parts, 2)


def unfinished_block(model, tokens, h, c=4):
    """Adds to each token the mean of its own block, the part that is still to come included."""
    pad = -h.shape[1] % c
    means = F.pad(h, (0, 0, 0, pad)).unflatten(1, (-1, c)).mean(2)
    return h + means.repeat_interleave(c, 1)[:, : h.shape[1]]


def shorter_is_bidirectional(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 16)


def longer_is_bidirectional(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] <= 16)


def expert_choice(model, tokens, h):
    """Each of two experts takes the T/2 tokens that like it best, over the whole sequence."""
    liking = h @ model.head.weight[0]
    taken = liking >= liking.median(1, keepdim=True).values
    return torch.where(taken[..., None], h * 2, h)


FRONTS = {
    "label_in_the_input": lambda m, tokens, h: h + 0.1 * m.tokens(tokens.roll(-1, 1)),
    "statistics_over_time": lambda m, tokens, h: (
        (h - h.mean(1, keepdim=True)) / h.std(1, correction=0, keepdim=True).clamp(min=1e-3)
    ),
    "count_of_a_token": lambda m, tokens, h: h + (tokens == 3).float().mean(1)[:, None, None],
    "convolution_padded_on_both_sides": lambda m, tokens, h: h + F.avg_pool1d(h.mT, 3, 1, 1).mT,
    "gate_one_step_ahead": lambda m, tokens, h: h * h.roll(-1, 1).sigmoid(),
    "a_millionth_of_the_next_token": lambda m, tokens, h: h + 1e-6 * h.roll(-1, 1),
    "block_before_it_is_finished": unfinished_block,
    "expert_choice": expert_choice,
}
MIXES = {
    "bidirectional": seeing(lambda i, j, n: j >= 0),
    "reversed_mask": seeing(lambda i, j, n: j >= i),
    "one_key_too_far": seeing(lambda i, j, n: j <= i + 1),
    "one_future_key_in_one_row": seeing(lambda i, j, n: (j <= i) | ((i == LATE) & (j == LATE + 1))),
    "far_future_key_in_one_row": seeing(lambda i, j, n: (j <= i) | ((i == 5) & (j == n - 1))),
    "block_mask_rounded_up": seeing(lambda i, j, n: j // 8 <= i // 8),
    "normaliser_over_the_future": future_normaliser,
    "top_k_chosen_with_the_future": top_k_with_future,
    "chunk_state_too_early": linear_chunks,
    "long_input_bidirectional": longer_is_bidirectional,
}
PLANTED = {name: TinyLM(front=front) for name, front in FRONTS.items()}
PLANTED |= {name: TinyLM(mix=mix) for name, mix in MIXES.items()}
WITHOUT_GRADIENT = {"count_of_a_token", "top_k_chosen_with_the_future", "expert_choice"}  # they act by a choice
SECOND_LOOKUP = {"label_in_the_input"}  # the probe follows the embedding of the tokens as they are


def found(report):
    return {t.name for t in report.failed}


# -- correct models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_tokens", [3, T, 140])
def test_a_plain_gpt_passes(n_tokens):
    report = leak_test(TinyLM(), vocab_size=V, n_tokens=n_tokens)
    assert report.passed, report
    assert [t.name for t in report.tests if t.skipped] == ["decoding"]  # it has no cache


BACKENDS = [
    ("exact", {}, "alibi"),
    ("sdpa", {}, "learned"),
    ("sliding_window", {"window": 7}, "rope"),
    ("block_sparse", {"block": 4, "window": 2}, "rope"),
    ("linear", {"chunk": 8}, "sinusoidal"),
    ("gqa", {}, "rope"),
    ("mqa", {}, "none"),
]


def lm(name="sdpa", options=None, positions="rope", **sizes) -> CausalLM:
    sizes = {"n_layers": 2, "d_model": 32, "n_heads": 4} | sizes
    return assemble(ModelConfig(**sizes), AttentionConfig(name, options or {}), PositionsConfig(name=positions), V, 0)


@pytest.mark.parametrize(("name", "options", "positions"), BACKENDS)
def test_every_backend_passes_bitwise(name, options, positions):
    report = leak_test(lm(name, options, positions, short_conv=4), vocab_size=V, n_tokens=25)
    assert report.passed, report
    assert not any(t.skipped for t in report.tests), report
    assert report["suffix_perturbation"].max_change == 0.0
    assert report["gradient_probe"].max_change == 0.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_pass(dtype):
    report = leak_test(lm().to(dtype), vocab_size=V, n_tokens=17)
    assert report.passed, report


def test_under_autocast_it_passes_within_the_rounding_of_bfloat16():
    with torch.autocast("cpu", torch.bfloat16):
        report = leak_test(lm(), vocab_size=V, n_tokens=17)
    assert report.passed, report
    assert "bfloat16" in report.setting
    assert not report["decoding"].skipped


def test_a_recurrent_model_passes():
    class GRU(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.rnn, self.head = nn.Embedding(V, C), nn.GRU(C, C, batch_first=True), nn.Linear(C, V)

        def forward(self, tokens):
            return self.head(self.rnn(self.tokens(tokens))[0])

    assert leak_test(GRU(), vocab_size=V, n_tokens=T).passed


def test_dropout_is_off_during_the_test_and_back_on_after():
    model = TinyLM(dropout=0.5).train()
    model.mlp.eval()  # a mixture of modes is put back as it was
    assert leak_test(model, vocab_size=V, n_tokens=T).passed
    assert model.training
    assert model.dropout.training
    assert not model.mlp.training


# -- planted leaks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANTED)
def test_planted_leak_is_caught(name):
    report = leak_test(PLANTED[name], vocab_size=V, n_tokens=T)
    expected = {"suffix_perturbation", "single_token", "gradient_probe"}
    if name in WITHOUT_GRADIENT | SECOND_LOOKUP:
        expected.discard("gradient_probe")
    assert expected <= found(report), report
    assert not report.passed
    assert report["suffix_perturbation"].first_leaking_position is not None


def test_the_one_leaking_row_and_the_token_it_saw_are_named():
    report = leak_test(PLANTED["one_future_key_in_one_row"], vocab_size=V, n_tokens=T)
    for name in ("suffix_perturbation", "single_token", "gradient_probe"):
        assert report[name].first_leaking_position == LATE
        assert f"logit {LATE}" in report[name].detail
        assert f"saw token {LATE + 1}" in report[name].detail
    assert f"saw token {LATE + 1}" in str(report)


def test_a_far_key_is_named_although_many_cuts_expose_it():
    report = leak_test(PLANTED["far_future_key_in_one_row"], vocab_size=V, n_tokens=T)
    assert "logit 5 of row" in report["suffix_perturbation"].detail
    assert f"saw token {T - 1}" in report["suffix_perturbation"].detail
    assert f"logit 5 saw token {T - 1}" in report["gradient_probe"].detail


def test_a_leak_at_short_lengths_only_is_caught_by_truncation():
    report = leak_test(TinyLM(mix=shorter_is_bidirectional), vocab_size=V, n_tokens=T)
    assert found(report) == {"truncation"}, report


def test_a_leak_beyond_a_length_needs_that_length():
    model = TinyLM(mix=longer_is_bidirectional)
    assert leak_test(model, vocab_size=V, n_tokens=16).passed
    assert "suffix_perturbation" in found(leak_test(model, vocab_size=V, n_tokens=17))


def test_a_leak_in_training_mode_only_is_caught_there():
    model = TinyLM()
    model.mix = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=not model.training)
    assert found(leak_test(model, vocab_size=V, n_tokens=T)) == {"training_mode"}


def test_buffers_changed_by_training_mode_are_put_back():
    model = TinyLM()
    model.norm = nn.BatchNorm1d(T)  # over (B, T, C): statistics of each position over batch and width
    before = model.norm.running_mean.clone()
    report = leak_test(model, vocab_size=V, n_tokens=T)
    assert torch.equal(model.norm.running_mean, before)
    assert "truncation" not in found(report), report  # it takes one length only: skipped, with the error
    assert "takes only T = 24" in report["truncation"].detail


def test_rows_that_mix_are_caught():
    model = TinyLM(front=lambda m, tokens, h: h + h.mean(0, keepdim=True))
    assert found(leak_test(model, vocab_size=V, n_tokens=T)) >= {"batch_isolation"}


def test_dropout_left_on_in_evaluation_fails_but_is_no_leak():
    report = leak_test(TinyLM(front=lambda m, tokens, h: F.dropout(h, 0.1)), vocab_size=V, n_tokens=T)
    assert {"repeatable"} <= found(report) <= {"repeatable", "truncation"}  # a shorter input is dropped differently


def test_a_leak_behind_zero_weights_is_caught_and_the_weights_stay():
    model = TinyLM(mix=MIXES["bidirectional"])
    nn.init.zeros_(model.out.weight)
    nn.init.zeros_(model.out.bias)
    report = leak_test(model, vocab_size=V, n_tokens=T)
    assert "suffix_perturbation" in found(report)
    assert "zero weights held noise" in report.setting
    assert not model.out.weight.any()


def test_nan_fails():
    report = leak_test(TinyLM(front=lambda m, tokens, h: h / 0 * 0), vocab_size=V, n_tokens=T)
    assert found(report) == {"finite_logits"}
    assert json.dumps(report.to_dict(), allow_nan=False)


def test_nan_for_some_tokens_only_fails():
    poison = TinyLM(front=lambda m, tokens, h: h + torch.where(tokens == tokens[0, -1], math.nan, 0.0)[..., None] * 0)
    assert not leak_test(poison, vocab_size=V, n_tokens=T).passed


def test_a_model_that_does_not_read_its_input_proves_nothing():
    constant = torch.randn(V)
    report = leak_test(lambda tokens: constant.expand(*tokens.shape, V), vocab_size=V, n_tokens=T)
    assert {"suffix_perturbation", "single_token"} <= found(report)
    assert "proves nothing" in report["suffix_perturbation"].detail


def test_a_model_that_does_not_read_the_past_is_said_to():
    table = torch.randn(V, V)
    report = leak_test(lambda tokens: table[tokens], vocab_size=V, n_tokens=T)
    assert report.passed
    assert report["reads_the_past"].skipped


# -- decoding ----------------------------------------------------------------------------------------------------------


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


# -- callables from elsewhere ------------------------------------------------------------------------------------------


class Wrapped(nn.Module):
    """Returns an object with ``.logits``, as Hugging Face models do."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input_ids):
        return SimpleNamespace(logits=self.inner(input_ids))


def test_the_module_behind_a_lambda_is_found():
    hf = Wrapped(TinyLM(dropout=0.3)).train()
    report = leak_test(lambda t: hf(input_ids=t).logits, vocab_size=V, n_tokens=T)
    assert report.passed, report
    assert report["gradient_probe"].passed
    assert hf.inner.dropout.training


@pytest.mark.parametrize("leaky", [False, True])
def test_partials_methods_and_objects_show_their_module(leaky):
    model = TinyLM(mix=MIXES["one_key_too_far"] if leaky else None)

    class Runner:
        def __init__(self):
            self.net = model

        def __call__(self, tokens):
            return self.net(tokens)

    for fn in (functools.partial(model), model.forward, Runner(), Runner().__call__):
        report = leak_test(fn, vocab_size=V, n_tokens=9)
        assert report.passed is not leaky, report
        assert not report["gradient_probe"].skipped


def test_a_callable_that_shows_no_module_is_tested_and_says_what_was_skipped():
    hidden = {"model": TinyLM()}

    def opaque(tokens):
        with torch.no_grad():
            return hidden["model"](tokens)

    report = leak_test(opaque, vocab_size=V, n_tokens=T)
    assert report.passed
    assert {t.name for t in report.tests if t.skipped} == {"gradient_probe", "training_mode", "decoding"}
    assert all(t.detail and not t.passed for t in report.tests if t.skipped)
    assert "skipped gradient_probe" in str(report)
    shown = leak_test(opaque, vocab_size=V, n_tokens=T, model=hidden["model"])
    assert "runs under no_grad" in shown["gradient_probe"].detail


def test_an_undecided_kernel_passes_within_rounding_and_no_further():
    noisy = TinyLM(front=lambda m, tokens, h: h + 1e-9 * h.sum(1, keepdim=True))  # as another order of sums would
    assert not leak_test(noisy, vocab_size=V, n_tokens=T).passed
    report = leak_test(noisy, vocab_size=V, n_tokens=T, exact=False)
    assert report.passed, report
    assert "within rounding" in report.setting
    for name in ("one_key_too_far", "one_future_key_in_one_row", "normaliser_over_the_future"):
        assert {"suffix_perturbation", "gradient_probe"} <= found(
            leak_test(PLANTED[name], vocab_size=V, n_tokens=T, exact=False)
        )


# -- requests and reports ----------------------------------------------------------------------------------------------


def test_a_wrong_request_names_every_fault():
    with pytest.raises(RequestError) as error:
        leak_test(3, vocab_size=1, n_tokens=1, batch_size=0, cuts=[0, 5])
    assert len(error.value.reasons) == 5


@pytest.mark.parametrize(
    "output",
    [
        lambda t: t,
        lambda t: torch.zeros(*t.shape, V + 1),
        lambda t: torch.zeros(t.shape[0], 1, V),
        lambda t: (torch.zeros(*t.shape, V), None),
        lambda t: None,
        lambda t: torch.zeros(*t.shape, V, dtype=torch.long),
    ],
)
def test_an_output_of_another_shape_is_a_request_error(output):
    with pytest.raises(RequestError, match=r"must return logits \(B, T, V\)"):
        leak_test(output, vocab_size=V, n_tokens=T)


def test_a_seed_fixes_the_report_and_the_global_state_is_left_alone():
    state = torch.random.get_rng_state()
    first, second = (leak_test(PLANTED["one_key_too_far"], vocab_size=V, n_tokens=T, seed=3) for _ in range(2))
    assert first == second
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.is_grad_enabled()


def test_parameters_and_gradients_are_untouched():
    model = lm("exact", short_conv=4)
    before = {name: p.clone() for name, p in model.named_parameters()}
    leak_test(model, vocab_size=V, n_tokens=9)
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.named_parameters())


def test_the_record_form_has_every_field():
    plain = leak_test(TinyLM(), vocab_size=V, n_tokens=9).to_dict()
    fields = {"name", "passed", "skipped", "max_change", "first_leaking_position", "detail"}
    assert plain["passed"] is True
    assert all(set(test) == fields for test in plain["tests"])
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_each_position_is_a_cut_up_to_128_and_edges_beyond():
    assert default_cuts(128) == list(range(1, 128))
    cuts = default_cuts(1000)
    assert len(cuts) < 64
    assert {1, 2, 63, 64, 65, 127, 128, 129, 499, 500, 501, 999} <= set(cuts)


def test_given_cuts_are_the_ones_tried():
    leaky = PLANTED["one_future_key_in_one_row"]
    assert leak_test(leaky, vocab_size=V, n_tokens=T, cuts=[3, LATE], batch_size=1)["suffix_perturbation"].passed
    assert "suffix_perturbation" in found(leak_test(leaky, vocab_size=V, n_tokens=T, cuts=[LATE + 1], batch_size=1))


# -- the canary --------------------------------------------------------------------------------------------------------


def test_the_canary_passes_a_causal_model_and_catches_leaks_clearly():
    def reversed_mask():
        model = lm("exact", d_model=64)
        for attention in model.attention_modules():
            attention.attend = lambda q, k, v, *_: MIXES["reversed_mask"](q, k, v)
        return model

    assert entropy_canary(lambda: lm("exact", d_model=64), V, n_tokens=16, steps=100).passed
    leaky = entropy_canary(reversed_mask, V, n_tokens=16, steps=100)
    assert not leaky.passed
    assert leaky.max_change > 0.5 * math.log(V), leaky  # nats below the entropy
    assert leaky.first_leaking_position is not None


def test_the_canary_does_not_bark_over_many_seeds():
    assert all(entropy_canary(TinyLM, V, n_tokens=8, steps=10, seed=seed, batch_size=4).passed for seed in range(20))


def test_a_model_that_diverges_on_random_tokens_fails_the_canary():
    broken = entropy_canary(lambda: TinyLM(front=lambda m, tokens, h: h / 0), V, n_tokens=8, steps=2)
    assert not broken.passed
    assert "not finite" in broken.detail
    with pytest.raises(RequestError):
        entropy_canary(nn.Identity, V)
