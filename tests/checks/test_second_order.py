"""The checks of second derivatives and torch.func: which backends have them, which refuse, and what a wrong one looks like."""

from __future__ import annotations

import pytest
import torch

from attnzoo import check, list_backends
from attnzoo.backends.exact import Exact
from attnzoo.checks.report import PASSED, REFUSED

CHECKS = ["second_derivative", "transforms"]
FUSED = {  # softmax by torch's fused kernel, whose backward has no derivative on a CPU
    "based", "block_sparse", "chunked_local", "differential", "dilated_window", "gqa", "hierarchical", "mla", "mqa", "nsa",
    "sdpa", "sink_logit", "sliding_window", "streaming",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(list_backends()) - {"flex", "xformers"}))
def test_every_backend_has_a_right_one_or_refuses_it(name):
    report = check(name, only=CHECKS, shrink=False)
    assert not report.failures, report
    found = {one: {r.status for r in report.results if r.check == one} for one in CHECKS}
    assert found["transforms"] == {PASSED}
    assert found["second_derivative"] <= ({PASSED, REFUSED} if name in FUSED else {PASSED})
    assert (REFUSED in found["second_derivative"]) == (name in FUSED)


def test_the_kernel_written_out_has_the_derivative_that_the_fused_one_refuses():
    report = check("sdpa", only=["second_derivative"], shrink=False, kernel="math")
    assert {r.status for r in report.results} == {PASSED}, report


class Wrong(Exact):
    """A backward pass with an error of its own."""

    source = "here"

    def attend(self, q, k, v, mask, bias, x):
        out = super().attend(q, k, v, mask, bias, x)
        if out.requires_grad:
            out.register_hook(self._fault)
        return out

    @staticmethod
    def _fault(gradient):
        if torch.is_grad_enabled():
            raise RuntimeError("index out of reach")


def test_an_error_that_says_nothing_of_derivatives_is_no_refusal():
    report = check(Wrong, only=["second_derivative"], shrink=False)
    assert report.failures
    assert "index out of reach" in report.failures[0].actual
