"""The bounds behind the verdicts, and what counts as passed: each as a number, from both sides."""

from __future__ import annotations

import math

import pytest
import torch
from leaky_models import PLANTED, T, TinyLM, V, causal, found, lm
from torch.nn import functional as F

from attnzoo import leak_test
from attnzoo.checks import canary
from attnzoo.checks.compare import Failed, Skip, expect_close, expect_same, expect_unbiased
from attnzoo.checks.judge import verify
from attnzoo.checks.leak import LeakReport
from attnzoo.checks.leak_decoding import splits
from attnzoo.checks.leak_rounding import explained
from attnzoo.checks.leak_setup import rounding
from attnzoo.checks.leak_subject import LeakTest, skip
from attnzoo.checks.subject import Subject
from attnzoo.errors import Refused

CPU = torch.device("cpu")


def test_what_rounding_may_change():
    assert rounding(torch.float32, [], CPU) == (64 * 2.0**-23, torch.float32)
    assert rounding(torch.float64, [], CPU) == (64 * 2.0**-52, torch.float64)
    assert rounding(torch.bfloat16, [], CPU) == (8 * 2.0**-7, torch.bfloat16)
    assert rounding(torch.float32, [torch.nn.Linear(2, 2).half()], CPU) == (8 * 2.0**-10, torch.float16)
    with torch.autocast("cpu", torch.bfloat16):
        assert rounding(torch.float32, [], CPU)[1] == torch.bfloat16


def test_what_a_rule_may_amplify():
    exact = torch.ones(1, 2, 3, dtype=torch.float64)
    apart = lambda off: explained(lambda t: exact, [], None, exact.float() + off, 1e-7, 0)  # noqa: E731
    assert apart(0.0) == 0
    assert apart(1e-5) == pytest.approx(4e-5, rel=0.01)
    assert apart(1.0) == pytest.approx(1e-7**0.5)  # half the digits are no rounding


@pytest.mark.parametrize(("scale", "passed"), [(0.5, True), (2.0, False)])
def test_within_rounding_is_64_units_of_the_largest_logit(scale, passed):
    """The first logit moves by ``scale`` times what is allowed when the last token changes."""
    base = torch.zeros(V)
    base[0] = 8.0

    def logits(tokens):
        out = base.expand(*tokens.shape, V).clone()
        out[..., 1] = tokens.cumsum(1) / 1e3
        out[:, 0, 0] += (tokens[:, -1] % 2) * scale * 64 * 2.0**-23 * 8.0
        return out

    report = leak_test(logits, vocab_size=V, n_tokens=T, exact=False)
    assert report["suffix_perturbation"].passed is passed, report
    assert not leak_test(logits, vocab_size=V, n_tokens=T, exact=True)["suffix_perturbation"].passed


@pytest.mark.parametrize(
    ("declared", "exact", "passed"), [(True, None, False), (False, None, True), (False, True, False)]
)
def test_bitwise_unless_an_attention_declares_otherwise(monkeypatch, declared, exact, passed):
    from dataclasses import replace

    model = lm("exact")
    first = model.attention_modules()[0]
    monkeypatch.setattr(type(first), "capabilities", replace(first.capabilities, bitwise_prefix=declared))
    noisy = lambda tokens: model(tokens) * (1 + 2.0**-22 * (tokens.sum(1) % 2)[:, None, None])  # noqa: E731
    report = leak_test(noisy, vocab_size=V, n_tokens=T, exact=exact, model=model)
    assert report["suffix_perturbation"].passed is passed, report


@pytest.mark.parametrize("length", [1, 2, 3, T // 4, T // 2, T // 2 + 1, T - 1])
def test_a_fault_of_one_length_is_caught_by_truncation(length):
    model = TinyLM(mix=lambda q, k, v: causal(q, k, v) * (1.01 if q.shape[2] == length else 1.0))
    assert found(leak_test(model, vocab_size=V, n_tokens=T)) == {"truncation"}


def test_the_whole_length_is_tested():
    """Only logits of the last tokens see ahead, of a full input."""
    model = TinyLM(front=lambda m, tokens, h: torch.cat([h[:, :20], h[:, 20:] + 0.1 * h[:, 20:].roll(-1, 1)], 1))
    report = leak_test(model, vocab_size=V, n_tokens=T)
    assert {"suffix_perturbation", "single_token", "gradient_probe", "training_mode"} <= found(report)
    assert report["suffix_perturbation"].first_leaking_position == 20


@pytest.mark.parametrize("n_tokens", [2, 24, 100, 400])
def test_decoding_goes_on_for_many_single_tokens(n_tokens):
    first, nearly, last, ragged = splits(n_tokens)
    assert first == [1] * min(n_tokens, 64) + ([n_tokens - 64] if n_tokens > 64 else [])
    assert nearly == [n_tokens - 1, 1]
    assert last == [n_tokens - min(16, n_tokens // 2)] + [1] * min(16, n_tokens // 2)
    assert len(set(ragged)) > 2 or n_tokens == 2


def test_what_counts_as_passed():
    good, bad, skipped = LeakTest("a", True), LeakTest("b", False), skip("c", "why")
    differs, draws = LeakTest("decoding", False), LeakTest("repeatable", False)
    passed = {
        (good,): True, (): False, (skipped,): False, (good, skipped): True, (good, bad): False, (bad,): False,
        (good, differs): True, (good, draws): False, (good, differs, bad): False,
    }  # fmt: skip
    for tests, right in passed.items():
        assert LeakReport(list(tests), "").passed is right, tests
    verdicts = {
        (good,): "no leak", (skipped,): "proves nothing", (good, bad): "leaks", (good, differs): "decoding differs",
        (good, differs, bad): "leaks", (good, draws): "evaluation draws",
    }  # fmt: skip
    for tests, right in verdicts.items():
        assert LeakReport(list(tests), "").verdict == right, tests


# -- the canary ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("errors", "passed"), [(4.5, True), (5.5, False)])
def test_the_canary_allows_five_standard_errors(errors, passed):
    draw = torch.Generator().manual_seed(0)
    losses = torch.randn(200, 15, generator=draw, dtype=torch.float64)
    losses = (losses - losses.mean()) / losses.std()
    test = canary._verdict("c", 3.0 - errors / math.sqrt(losses.numel()) + losses, 3.0)
    assert test.passed is passed
    assert test.max_change == pytest.approx(errors / math.sqrt(losses.numel()))


@pytest.mark.parametrize(("how", "entropy"), [({}, math.log(V)), ({"alphabet": [3, 5, 9]}, math.log(3))])
def test_the_canary_s_bound_is_the_entropy_of_what_it_draws(monkeypatch, how, entropy):
    seen = []
    monkeypatch.setattr(canary, "_verdict", lambda name, losses, bound: seen.append((name, losses.shape, bound)))
    drawn = []

    class Listens(TinyLM):
        def forward(self, tokens):
            drawn.append((tokens, self.training))
            return super().forward(tokens)

    canary.entropy_canary(Listens, V, n_tokens=6, steps=5, batch_size=2, name="n", **how)
    ((name, shape, bound),) = seen
    assert (name, tuple(shape)) == ("n", (3 * 2, 5))  # the second half of five steps, five predictions a row
    assert bound == pytest.approx(entropy)
    assert len(drawn) == 5
    assert all(training and tokens.shape == (2, 6) for tokens, training in drawn)
    assert set(torch.cat([t for t, _ in drawn]).flatten().tolist()) <= set(how.get("alphabet", range(V)))
    assert not torch.equal(drawn[0][0], drawn[1][0])


def test_the_canary_draws_from_64_symbols_of_many(monkeypatch):
    seen = []
    monkeypatch.setattr(
        canary, "_losses", lambda model, vocab, symbols, *rest: seen.append(symbols) or torch.ones(2, 2)
    )
    canary.entropy_canary(TinyLM, 1000)
    assert seen[0].tolist() == list(range(64))


# -- closeness -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("off", "passed"), [(3.5, True), (4.5, False)])
def test_closeness_is_four_times_what_plain_arithmetic_loses(off, passed):
    exact = torch.ones(8, dtype=torch.float64)
    lost = 1e-5
    plain = (exact + lost).float()

    def tried(**how):
        try:
            expect_close((exact + off * lost).float(), exact, plain, "out", **how)
        except Failed:
            return False
        return True

    assert tried() is passed
    assert tried(moved=lambda: 1e-4)
    assert not tried(multiple=3.0)


@pytest.mark.parametrize(("dtype", "cap"), [(torch.float32, 1e-3), (torch.bfloat16, 0.15), (torch.float16, 0.05)])
def test_no_error_beyond_the_cap_whatever_plain_arithmetic_loses(dtype, cap):
    exact = torch.full((8,), 1.0, dtype=torch.float64)
    expect_close((exact + 0.9 * cap).to(dtype), exact, exact + 1, "out")
    with pytest.raises(Failed, match="allowed"):
        expect_close((exact + 1.1 * cap).to(dtype), exact, exact + 1, "out")


def test_a_factor_is_seen_that_hides_in_each_number():
    draw = torch.Generator().manual_seed(0)
    exact = torch.randn(4000, generator=draw, dtype=torch.float64)
    expect_unbiased(exact.bfloat16(), exact, exact.bfloat16(), "out")
    with pytest.raises(Failed, match="times"):
        expect_unbiased((1.03 * exact).bfloat16(), exact, exact.bfloat16(), "out")
    with pytest.raises(Failed):
        expect_unbiased(torch.full_like(exact, math.nan), exact, None, "out")


def test_same_is_the_same():
    one = torch.ones(3)
    expect_same(one, one, "out")
    for other in (one + 2.0**-23, one * math.nan, torch.ones(4)):
        with pytest.raises(Failed):
            expect_same(other, one, "out")
    expect_same(one + 0.5, one, "out", 0.5)


# -- the judge -------------------------------------------------------------------------------------------------------------


def raising(error):
    def prop(subject, case):
        if error is not None:
            raise error

    return prop


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "passed"), (Failed("1", "2"), "failed"), (Skip("why"), "skipped"), (ValueError("x"), "failed"),
     (Refused("not declared"), "failed")],
)  # fmt: skip
def test_a_property_s_verdict(error, status):
    subject = Subject.of("sdpa")
    assert verify(subject, "c", subject.base, raising(error)).status == status


def test_what_is_declared_impossible_has_to_be_refused(monkeypatch):
    from dataclasses import replace

    subject = Subject.of("mqa")
    case = replace(subject.base, heads=4, kv_heads=2)
    assert subject.reasons(case)
    assert verify(subject, "c", case, raising(None)).status == "refused"
    monkeypatch.setattr(Subject, "reasons", lambda *_: ["it says so"])
    computed = verify(Subject.of("sdpa"), "c", subject.base, raising(None))
    assert (computed.status, computed.actual) == ("failed", "it computed something")


def test_dropout_alone_is_no_leak_but_does_not_pass():
    draws = leak_test(TinyLM(front=lambda m, tokens, h: F.dropout(h, 0.1)), vocab_size=V, n_tokens=T)
    assert not draws.passed
    assert not leak_test(PLANTED["a_millionth_of_the_next_token"], vocab_size=V, n_tokens=T).passed
