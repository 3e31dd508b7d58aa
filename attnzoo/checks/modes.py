"""The modes a module runs in: dropout, evaluation, autocast, a rerun, a reload."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnzoo.checks.cases import Case, MaskPlan
from attnzoo.checks.compare import Failed, Skip, expect_close, expect_finite, expect_same
from attnzoo.checks.decoding import decode, new_cache, part
from attnzoo.checks.judge import each
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject
from attnzoo.checks.suite import conformance_check
from attnzoo.kernels.sums import UNORDERED
from attnzoo.seeds import reseed

DRAWS = 2048
MOST_KINDS = 8
"""Factors that dropout may lead to: 0 and 1/(1 - p), or their combinations where a rule adds up to three kinds of weights."""


@conformance_check(quick=True)
def dropout_off_in_evaluation(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """In evaluation dropout does nothing: two runs are bitwise equal and give the definition, and so does decoding."""
    yield from each(
        subject, name, [replace(subject.base, n_queries=n, n_keys=n, dropout=0.5) for n in (1, 9)], _evaluates
    )


def _evaluates(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case, fresh=True).eval(), subject.inputs(case)
    with torch.no_grad():
        first, second = module(*inputs), module(*inputs)
        cache = subject.new_cache(module, case, case.n_keys)
        decoded = decode(module, inputs, (1,) * case.n_keys, cache)
    expect_same(second, first, "out", detail="two evaluations of the same input")
    subject.expect_definition(module, inputs, first)
    subject.expect_definition(module, inputs, decoded, "decoded out")


@conformance_check()
def dropout_in_training(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """In training dropout acts on the weights, right in expectation, reproducible by seed and different without one."""
    cases = [
        replace(subject.base, batch=1, n_queries=n, n_keys=4, dropout=p) for n, p in ((4, 0.5), (4, 0.2), (1, 0.5))
    ]
    yield from each(subject, name, cases, _drops)
    yield from each(subject, name, cases[:1], _drops_decoding)


def _drops_decoding(subject: Subject, case: Case) -> None:
    """A token decoded by a module in training is one more query: its weights are dropped too."""
    if not case.dropout or case.n_keys < 2:
        raise Skip("no dropout, or no token before")
    module, inputs = subject.build(case, fresh=True).train(), subject.inputs(case)
    many = inputs.map(lambda t: t.expand(DRAWS, *t.shape[1:]))
    cache = subject.new_cache(module, replace(case, batch=DRAWS), case.n_keys)
    with torch.no_grad():
        for start, end in ((0, case.n_keys - 1), (case.n_keys - 1, case.n_keys)):
            q, k, v, mask, bias, x = part(many, start, end)
            out = module.extend(q, k, v, cache, mask, bias, x)
    if torch.equal(out, out[:1].expand_as(out)):
        raise Failed(
            "weights dropped, each row its own", f"{DRAWS} rows bit for bit the same", "out of a decoded token"
        )


def _drops(subject: Subject, case: Case) -> None:
    if not case.dropout:
        raise Skip("no dropout")
    module, inputs = subject.build(case, fresh=True).train(), subject.inputs(case)
    many = inputs.map(lambda t: t.expand(DRAWS, *t.shape[1:]))
    with torch.no_grad():
        reseed(3, subject.device)
        first = module(*many)
        reseed(3, subject.device)
        again = module(*many)
        other = module(*many)
        ones = module(many.q, many.k, torch.ones_like(many.v), many.mask, many.bias, many.x)
    expect_same(again, first, "out", detail="two runs from one seed")
    if torch.equal(first, other):
        raise Failed("another draw without a new seed", "the same output bit for bit", "out")
    subject.need_weights()
    if not torch.allclose(ones, ones[..., :1].expand_as(ones)):
        raise Failed(
            "weights dropped: equal values give equal channels", "channels dropped one by one", "out with v = 1"
        )
    exact, weights = subject.defined(module, inputs)
    # a weight w becomes w/(1-p) or 0: variance w² p/(1-p); six standard errors of the mean over the draws
    spread = (weights.square() @ module.repeat_kv(inputs.v.double()).square()) * case.dropout / (1 - case.dropout)
    allowed = 6 * (spread / DRAWS).sqrt() + 1e-5
    error = (first.double().mean(0, keepdim=True) - exact).abs()
    if (error > allowed).any():
        at = tuple((error > allowed).nonzero()[0].tolist())
        mean = first.double().mean(0, keepdim=True)[at].item()
        raise Failed(
            f"a mean of {exact[at].item():.4g}",
            f"{mean:.4g}",
            f"mean out over {DRAWS} draws at {at}",
            f"allowed ± {allowed[at].item():.2g}",
        )


@conformance_check()
def dropout_of_weights(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Weights are dropped or kept, dropped with probability p, no more and no less, and drawn for each head on its own."""
    yield from each(
        subject, name, [replace(subject.base, batch=1, n_queries=6, n_keys=6, dropout=p) for p in (0.5, 0.2)], _dropped
    )


def _dropped(subject: Subject, case: Case) -> None:
    p, n = case.dropout, case.n_keys
    if not p or case.dim < n or case.kv_heads != case.heads:
        raise Skip("no dropout, or the identity does not fit into the values")
    subject.need_weights()
    module, inputs = subject.build(case, fresh=True).train(), subject.inputs(case)
    many = inputs.map(lambda t: t.expand(DRAWS // 4, *t.shape[1:]).clone())
    many.q, many.k = (t[:, :1].expand_as(t).clone() for t in (many.q, many.k))  # all heads alike
    many.v = torch.eye(n, case.dim, dtype=case.dtype, device=subject.device).expand_as(many.v).clone()
    with torch.no_grad():
        read = module(*many)[..., :n].double()
    weights = subject.defined(module, many)[1][0]
    for at in (weights.abs() > 1e-3).nonzero().tolist():
        drawn = read[:, *at] / weights[*at]
        zero, kinds = (drawn.abs() < 1e-3).double().mean().item(), len(drawn.mul(1e3).round().unique())
        if kinds > MOST_KINDS:
            raise Failed(f"0 or {1 / (1 - p):.4g} times the weight", f"{kinds} different factors", f"weights{at}")
        spread = 6 * (p * (1 - p) / len(drawn)) ** 0.5
        # where kinds of weights are added up, all of them are 0 less often than each
        if zero > p + spread or (kinds == 2 and 0 < zero < p - spread):
            raise Failed(f"0 in {p:.0%} of the draws", f"in {zero:.0%}", f"weights{at}")
    if torch.equal(read[:, 0], read[:, -1]) and case.heads > 1:
        raise Failed("another draw for each head", "the same weights dropped in all", "weights read with v = 1")


@conformance_check(quick=True)
def determinism(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """A rerun is bitwise equal, forward and backward, also after a call with other inputs in between.

    On CUDA the gradients of kernels in `UNORDERED` are so within rounding.
    """
    cases = [
        replace(subject.base, n_queries=n, n_keys=n, mask=m)
        for m in (MaskPlan(), MaskPlan(padding="left"))
        for n in (9, 34)
    ]
    yield from each(subject, name, cases, _reruns)


def _reruns(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case)
    other = subject.inputs(replace(case, batch=1, n_queries=5, n_keys=5, mask=MaskPlan(), seed=9))
    results = []
    for _ in range(2):
        leaves = inputs.leaves() if subject.trains else inputs
        with torch.set_grad_enabled(subject.trains):
            out = module(*leaves)
        unordered = subject.kind == "cuda" and any(name in module.kernel for name in UNORDERED)
        grads = {}
        if subject.trains:
            out.square().sum().backward()
            grads = {f"d {n}": t.grad for n, t in leaves.tensors().items() if t.grad is not None}
        results.append({"out": out.detach(), **grads})
        with torch.no_grad():
            module(*other)
    size = max(g.abs().max().item() for g in results[0].values())
    for name, first in results[0].items():
        allowed = 8 * torch.finfo(case.dtype).eps * size if unordered and name != "out" else 0.0
        expect_same(results[1][name], first, name, allowed, detail="the second run of the same input")


@conformance_check()
def autocast(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Under bfloat16 autocast outputs, decoded too, are finite and the definition within its rounding, long sums right."""
    plans = (MaskPlan(), MaskPlan(padding="left"), MaskPlan(documents="runs"), MaskPlan(window=3))
    cases = [
        replace(subject.base, dtype=torch.float32, n_queries=n, n_keys=n, mask=plan) for plan in plans for n in (5, 17)
    ]
    cases.append(replace(subject.base, dtype=torch.float32, batch=1, n_queries=300, n_keys=300, kind="ones"))
    yield from each(subject, name, cases, _autocast)


def _autocast(subject: Subject, case: Case) -> None:
    if torch.bfloat16 not in subject.can.dtypes:
        raise Skip(f"{subject.name} declares no bfloat16")
    module, inputs = subject.build(case), subject.inputs(case)
    if case.kind == "ones":
        inputs.q, inputs.k, inputs.v = inputs.q * 0, inputs.k * 0, inputs.v * 0 + 1
    with torch.no_grad(), torch.autocast(subject.kind, torch.bfloat16):
        out = module(*inputs)
        expect_finite(out, "out")
    low = inputs.map(lambda t: t.bfloat16())
    plain = None if case.kind == "ones" else subject.plain(module, low)
    exact = subject.exact(module, inputs)
    expect_close(out.bfloat16(), exact, plain, "out under autocast", multiple=8)
    held = new_cache(subject, module, replace(case, dtype=torch.bfloat16), case.n_keys)
    with torch.no_grad(), torch.autocast(subject.kind, torch.bfloat16):
        out = decode(module, low, (case.n_keys - 2, 1, 1), held)
    expect_close(out.bfloat16(), exact, plain, "out decoded under autocast", multiple=8)


@conformance_check()
def inference_first(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """What was first run in inference mode can be trained afterwards: no constant kept from there spoils the backward pass."""
    # sizes of no other check: a constant that the whole process keeps would be there already, made outside inference mode
    wide = replace(subject.base, dim=24)
    base = subject.base if subject.reasons(wide) else wide
    cases = [replace(base, n_queries=n, n_keys=n) for n in (27, 149)]
    yield from each(subject, name, cases, _infers_first, training=True)


def _infers_first(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case, fresh=True), subject.inputs(case)
    with torch.inference_mode():
        module(*inputs)
    leaves = inputs.leaves()
    module(*leaves).square().sum().backward()
    for name, t in leaves.tensors().items():
        if t.grad is not None:
            expect_finite(t.grad, f"d {name}")


@conformance_check(quick=True)
def state_dict(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Loading the state of one module into another makes their outputs bitwise equal; nothing that matters lies outside it."""
    yield from each(subject, name, [replace(subject.base, n_queries=9, n_keys=9)], _reload)


def _reload(subject: Subject, case: Case) -> None:
    first, second = subject.build(case, fresh=True), subject.build(case, seed=1, fresh=True)
    second.load_state_dict({n: t.clone() for n, t in first.state_dict().items()})
    inputs = subject.inputs(case)
    with torch.no_grad():
        expect_same(second(*inputs), first(*inputs), "out", detail="after load_state_dict")
