"""Inputs so large that a kernel computes them in parts, to bound its memory: the parts must meet, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attnzoo.checks.cases import Case
from attnzoo.checks.compare import Failed, expect_same
from attnzoo.checks.judge import each
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject
from attnzoo.checks.suite import conformance_check
from attnzoo.seeds import reseed

ROWS, GROUP, TOKENS, DIM = 64, 4, 200, 16
"""Scores of 32 or more keys a query are then several megabytes in the batch, and a sixteenth of that in a group."""
HOW = {"training": True, "shrink": False}
"""A smaller input would be no input in parts."""


@conformance_check()
def many_rows(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """A large batch gives the outputs and gradients that its rows give a few at a time."""
    large = _large(subject)
    biased = replace(large, bias=True, bias_gradient=True)
    cases = [replace(large if subject.reasons(biased) else biased, options="own"), large]
    yield from each(subject, name, cases, _in_groups, **HOW)


def _large(subject: Subject) -> Case:
    large = replace(subject.base, batch=ROWS, n_queries=TOKENS, n_keys=TOKENS)
    wide = replace(large, dim=DIM, value_dim=None)
    return large if subject.reasons(wide) else wide


def _in_groups(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case)
    generator = torch.Generator().manual_seed(5)
    shape = (*inputs.q.shape[:3], inputs.v.shape[3])
    upstream = torch.randn(shape, generator=generator, dtype=torch.float64).to(inputs.q)

    def run(rows: slice) -> dict[str, Tensor]:
        leaves = inputs.map(lambda t: t[rows]).leaves()
        named = {**leaves.tensors(), **{f"parameter {n}": p for n, p in module.named_parameters()}}
        if leaves.bias is not None:
            named |= {f"parameter bias.{n}": p for n, p in leaves.bias.named_parameters()}
        out = module(*leaves)
        found = torch.autograd.grad((out * upstream[rows]).sum(), list(named.values()), allow_unused=True)
        return {"out": out.detach()} | {f"d {n}": g for n, g in zip(named, found, strict=True) if g is not None}

    whole = run(slice(None))
    groups = [run(slice(start, start + GROUP)) for start in range(0, case.batch, GROUP)]
    for name, t in whole.items():
        parts = [group[name] for group in groups]
        due = torch.stack(parts).sum(0) if name.startswith("d parameter") else torch.cat(parts)
        # the same sums in another order; a part that is left out or read twice is off by as much as the whole
        bound = 1e3 * torch.finfo(t.dtype).eps * max(due.abs().max().item(), 1.0)
        expect_same(t, due, name, bound, f"{case.batch} rows at once against {GROUP} at a time")


@conformance_check()
def many_rows_dropped(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Also there the gradient of the values drops the weights that the output has dropped."""
    large = replace(_large(subject), dropout=0.4, options="own")
    wide = replace(large, value_dim=3 * large.dim)
    yield from each(subject, name, [large if subject.reasons(wide) else wide], _dropped, **HOW)


def _dropped(subject: Subject, case: Case) -> None:
    subject.need_weights()
    module, inputs = subject.build(case), subject.inputs(case)
    generator = torch.Generator().manual_seed(6)
    step = torch.randn(inputs.v.shape, generator=generator, dtype=torch.float64).to(inputs.v)

    def run(v: Tensor) -> Tensor:
        reseed(7, subject.device)
        return module(inputs.q, inputs.k, v, inputs.mask, None, inputs.x)

    leaf = inputs.v.clone().requires_grad_()
    out = run(leaf)
    upstream = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
    (gradient,) = torch.autograd.grad(out, leaf, upstream)
    with torch.no_grad():
        moved = ((run(inputs.v + step).double() - run(inputs.v - step).double()) / 2 * upstream).sum().item()
    said = (gradient.double() * step).sum().item()
    size = (gradient.double() * step).square().sum().sqrt().item()  # of a sum of as many terms of either sign
    if not abs(moved - said) < 1e-3 * size:
        raise Failed(
            f"{moved:.6g}", f"{said:.6g}", "d v along a random direction", "against the difference of two outputs"
        )
