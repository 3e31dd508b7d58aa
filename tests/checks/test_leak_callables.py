"""The leak test on any callable: what it finds out about it, what it refuses, what it reports."""

from __future__ import annotations

import functools
import json
from types import SimpleNamespace

import pytest
import torch
from leaky_models import LATE, MIXES, PLANTED, T, TinyLM, V, found, lm
from torch import nn

from attnzoo import RequestError, leak_test
from attnzoo.checks.leak import default_cuts


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
    assert sum(c % 32 not in (0, 1, 31) for c in cuts) > 10  # a leak may keep away from every edge
    assert default_cuts(1000, seed=1) != cuts


def test_given_cuts_are_the_ones_tried():
    leaky = PLANTED["one_future_key_in_one_row"]
    assert leak_test(leaky, vocab_size=V, n_tokens=T, cuts=[3, LATE], batch_size=1)["suffix_perturbation"].passed
    assert "suffix_perturbation" in found(leak_test(leaky, vocab_size=V, n_tokens=T, cuts=[LATE + 1], batch_size=1))
