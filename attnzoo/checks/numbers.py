"""Numbers at the edge of what a type holds: nothing non-finite comes from finite input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from attnzoo.checks.cases import Case, Inputs, MaskPlan
from attnzoo.checks.compare import Skip, expect_close, expect_finite
from attnzoo.checks.judge import each
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject
from attnzoo.checks.suite import conformance_check


def _logits(inputs: Inputs, size: float) -> None:
    """Every score is ± size up to a little, whatever D: q·k = ± size · sqrt(D)."""
    root = (size * inputs.q.shape[-1] ** 0.5 / inputs.q.shape[-1]) ** 0.5
    inputs.q = root * (1 + 0.01 * inputs.q.tanh())
    inputs.k = root * inputs.k[..., :1].sign() * (1 + 0.01 * inputs.k.tanh())


def _set(**how: Callable) -> Callable[[Inputs], None]:
    def change(inputs: Inputs) -> None:
        for name, function in how.items():
            setattr(inputs, name, function(getattr(inputs, name)))

    return change


KINDS: dict[str, Callable[[Inputs], None]] = {
    "logits ±120": lambda t: _logits(t, 120.0),
    "logits ±1e4": lambda t: _logits(t, 1e4),
    "all logits -120": lambda t: _set(
        q=lambda q: q * 0 + (120 / q.shape[-1] ** 0.5) ** 0.5, k=lambda k: k * 0 - (120 / k.shape[-1] ** 0.5) ** 0.5
    )(t),
    "tiny": _set(q=lambda t: t * 1e-5, k=lambda t: t * 1e-5, v=lambda t: t * 1e-3),
    "zero q and k": _set(q=lambda t: t * 0, k=lambda t: t * 0),
    "all zero": _set(q=lambda t: t * 0, k=lambda t: t * 0, v=lambda t: t * 0),
    "equal keys": _set(k=lambda t: t[:, :, :1].expand_as(t).clone()),
    "keys near -20": _set(k=lambda t: t - 20),
    "queries near -20": _set(q=lambda t: t - 20),
    "keys near -60": _set(k=lambda t: 0.1 * t - 60),
}
"""Inputs that have broken attentions: no row maximum subtracted, elu + 1 that rounds to 0, finfo.min in a mask."""
PAST_ITS_RANGE = {"logits ±1e4"}
"""Where a rule whose features underflow may say so in its docstring and give 0: only finiteness is asked of it."""


@conformance_check(quick=True)
def extreme_inputs(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Large, tiny, zero and equal inputs give the definition's output, finite, and finite gradients."""
    base, plans = subject.base, (MaskPlan(), MaskPlan(padding="left"))
    cases = [
        replace(base, n_queries=n, n_keys=n, kind=kind, mask=m)
        for kind in KINDS
        for n in (6,)
        for m in plans[: 1 if quick else 2]
    ]
    if not quick:
        cases += [replace(base, n_queries=19, n_keys=19, kind=kind) for kind in KINDS]
        halves = [t for t in subject.dtypes if t.itemsize == 2]
        cases += [
            replace(base, n_queries=6, n_keys=6, kind=kind, dtype=t)
            for kind in ("logits ±120", "equal keys", "keys near -20", "tiny")
            for t in halves
        ]
    yield from each(subject, name, cases, _extreme)


def _extreme(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case)
    KINDS[case.kind](inputs)
    if subject.trains:
        inputs = inputs.leaves()
    with torch.set_grad_enabled(subject.trains):
        out = module(*inputs)
    expect_finite(out, "out")
    if subject.softmax or case.kind not in PAST_ITS_RANGE:
        subject.expect_definition(module, inputs, out.detach())
    if subject.trains:
        out.sum().backward()
        for name, t in inputs.tensors().items():
            if t.grad is not None:
                expect_finite(t.grad, f"d {name}")


@conformance_check()
def long_sums(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Sums past what a half-precision type can hold (T·D > 65504; 256 ones in bfloat16) still come out right."""
    halves = [t for t in subject.dtypes if t.itemsize == 2]
    if not halves:
        halves = [subject.dtype]
    n, rows = (1100, 2) if subject.can.cross else (280, 280)
    dim = 64 if subject.can.cross else subject.base.dim
    cases = [
        replace(subject.base, n_queries=rows, n_keys=n, dim=dim, value_dim=None, batch=1, dtype=t, kind="ones")
        for t in halves
    ]
    yield from each(subject, name, cases, _sums)


def _sums(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case)
    inputs.q, inputs.k, inputs.v = inputs.q * 0 + 1, inputs.k * 0 + 1, inputs.v * 0 + 1
    with torch.no_grad():
        out = module(*inputs)
    # the plain computation sums in half precision and may overflow: here it is no yardstick. In 16 bits a wider sum is asked
    # for; in 32 and more n terms may be added one by one, which loses up to n roundings
    multiple = 8 if case.dtype.itemsize == 2 else case.n_keys
    what = f"out, all of q, k, v = 1, {case.n_keys} keys"
    expect_close(out, subject.exact(module, inputs), None, what, multiple=multiple)


@conformance_check()
def finite_output(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Finite input of widely mixed size gives finite output and gradients under every declared mask field."""
    plans = (
        MaskPlan(),
        MaskPlan(window=2),
        MaskPlan(padding="all"),
        MaskPlan(documents="runs"),
        MaskPlan(causal=False, padding="holes"),
    )
    cases = [
        replace(subject.base, n_queries=8, n_keys=8, mask=plan, kind="mixed sizes", seed=s)
        for plan in plans
        for s in (0, 1)
    ]
    yield from each(subject, name, cases, _mixed)


def _mixed(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case)
    if case.kind != "mixed sizes":
        raise Skip("only for mixed sizes")
    scales = torch.tensor([1e-6, 1e-2, 1.0, 30.0], dtype=case.dtype, device=subject.device)
    inputs = inputs.map(lambda t: t * scales[(t.abs() * 1e4).long() % 4])
    if subject.trains:
        inputs = inputs.leaves()
    with torch.set_grad_enabled(subject.trains):
        out = module(*inputs)
    expect_finite(out, "out")
    if subject.trains:
        out.square().sum().backward()
        for name, t in inputs.tensors().items():
            if t.grad is not None:
                expect_finite(t.grad, f"d {name}")
