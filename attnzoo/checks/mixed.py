"""Cases in which everything is drawn at once: sizes, heads, mask, bias, scale, type, kernel. What only a combination breaks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from attnzoo.checks.decoding import decodes
from attnzoo.checks.draw import drawn_cases
from attnzoo.checks.gradients import gradients_agree
from attnzoo.checks.judge import each
from attnzoo.checks.masking import honoured
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject
from attnzoo.checks.suite import conformance_check


@conformance_check(quick=True)
def mixed_inputs(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """On inputs drawn at random in every respect the output equals the definition, in training and in evaluation."""
    yield from each(subject, name, drawn_cases(subject, 10 if quick else 80, seed=1), honoured)


@conformance_check()
def mixed_gradients(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """On such inputs the gradients equal the definition's."""
    cases = drawn_cases(subject, 40, seed=2, training=subject.trains)
    yield from each(subject, name, cases, gradients_agree, training=True)


@conformance_check()
def mixed_decoding(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """On such inputs, as far as a causal mask and Tq = Tk allow it, decoding equals the full pass."""
    cases = [c for c in drawn_cases(subject, 60, seed=3) if c.mask.causal and c.n_queries == c.n_keys]
    yield from each(subject, name, cases, partial(decodes, most=3))
