"""Every field of the mask, alone and together: honoured exactly, or refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import torch

from attnzoo.checks.cases import Case, MaskPlan
from attnzoo.checks.compare import Failed, Skip, expect_close, expect_finite, expect_same
from attnzoo.checks.draw import draw_mask
from attnzoo.checks.judge import each
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject, evaluating, one_head
from attnzoo.checks.suite import conformance_check

FIELDS = (
    MaskPlan(causal=False),
    MaskPlan(window=1),
    MaskPlan(window=3),
    MaskPlan(window=3, sinks=2),
    MaskPlan(prefix=4),
    MaskPlan(prefix=7),
    MaskPlan(padding="right"),
    MaskPlan(padding="left"),
    MaskPlan(padding="left", shared=True),
    MaskPlan(padding="deep"),
    MaskPlan(padding="holes"),
    MaskPlan(documents="runs"),
    MaskPlan(documents="many"),
    MaskPlan(documents="mixed"),
)
"""Each field once, and each shape of padding and documents."""

TILED = (
    MaskPlan(causal=False),
    MaskPlan(window=65, sinks=3),
    MaskPlan(prefix=70),
    MaskPlan(padding="deep"),
    MaskPlan(padding="holes", documents="runs"),
    MaskPlan(documents="many"),
)
"""What hides whole tiles, and parts of them."""


def intersections(count: int, seed: int = 0) -> list[MaskPlan]:
    """Random masks of two fields and more; the same ones in every run."""
    rng = random.Random(seed)
    plans: dict[MaskPlan, None] = {}
    while len(plans) < count:
        plan = draw_mask(rng.choice)
        if len(plan.build(1, 4).fields) >= 2:
            plans[plan] = None
    return list(plans)


def _cases(subject: Subject, quick: bool) -> Iterator[Case]:
    base = subject.base
    short = quick or not subject.trains
    for plan in FIELDS:
        for n_queries, n_keys in ((9, 9),) if short else ((9, 9), (17, 17), (4, 9), (34, 34)):
            yield replace(base, n_queries=n_queries, n_keys=n_keys, mask=plan)
    for seed, plan in enumerate(intersections(6 if short else 24)):
        yield replace(base, n_queries=11, n_keys=11, mask=plan, seed=seed)
    yield from subject.tile_cases(*TILED)
    if not short:
        for plan in (*FIELDS, *intersections(8, seed=1)):
            yield replace(base, n_queries=10, n_keys=10, mask=plan, bias=True)
    yield replace(base, n_queries=9, n_keys=9, bias=True)
    yield replace(base, n_queries=3, n_keys=9, bias=True)


@conformance_check(quick=True)
def mask_fields(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Each mask field, their intersections and a score bias give the definition's output; undeclared ones are refused."""
    yield from each(subject, name, _cases(subject, quick), honoured)


def honoured(subject: Subject, case: Case) -> None:
    """The definition's output, in training without dropout and bitwise the same in evaluation."""
    module, inputs = subject.build(case), subject.inputs(case)
    with torch.no_grad():
        out = module(*inputs)
        with evaluating(module):
            evaluated = module(*inputs)
    subject.expect_definition(module, inputs, out)
    expect_same(evaluated, out, "out", detail="in evaluation, against the same in training, without dropout")


@conformance_check(quick=True)
def mask_readout(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """With q = k = 0 and V = I the output is the weights: non-zero exactly where the definition's are, key by key."""
    plans = [MaskPlan(), *FIELDS] if quick or not subject.trains else [MaskPlan(), *FIELDS, *intersections(10, seed=2)]
    cases = [
        replace(subject.base, n_queries=n, n_keys=n, mask=plan) for plan in plans for n in ((9,) if quick else (9, 19))
    ]
    cases += [replace(subject.base, n_queries=4, n_keys=9)]
    if not quick and subject.trains:
        cases += [
            replace(subject.base, n_queries=n, n_keys=n, options="own", batch=1)
            for e in subject.edges
            for n in (e + 1,)
        ]
    yield from each(subject, name, cases, _readout)


def _readout(subject: Subject, case: Case) -> None:
    n = case.n_keys
    subject.need_weights()
    case = replace(case, value_dim=n) if subject.can.value_dim else replace(case, dim=n, value_dim=None)
    if subject.reasons(case):
        raise Skip(f"no identity of {n} values: {'; '.join(subject.reasons(case))}")
    module, inputs = subject.build(case), subject.inputs(case)
    inputs.q, inputs.k = torch.zeros_like(inputs.q), torch.zeros_like(inputs.k)
    inputs.v = torch.eye(n, dtype=case.dtype, device=subject.device).expand_as(inputs.v).clone()
    with torch.no_grad():
        read = module(*inputs)
        right = subject.defined(module, inputs)[1]
    floor = 1e-6 / n
    due = right.abs() > floor
    # weights that a decay has made as small as the floor tell nothing about the mask
    faint = due & (right.abs() < 100 * floor) | ~due & (right.abs() > floor / 100)
    seen = torch.where(faint, due, read.abs() > floor)
    if not torch.equal(seen, due):
        at = tuple((seen != due).nonzero()[0].tolist())
        row, key = at[2], at[3]
        found, right_keys = (flags[at[:3]].nonzero().flatten().tolist() for flags in (seen, due))
        counts = f"row {row} reads keys {found}, expected {right_keys}"
        raise Failed(
            f"weight {right[at].item():.6g}",
            f"{read[at].item():.6g}",
            f"weights[{at[0]}, {at[1]}, row {row}, key {key}]",
            counts,
        )
    expect_close(read, right, right, "weights", multiple=16)


@conformance_check()
def mask_readout_far(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """The mask is the same beyond position 256: in every row, and in bfloat16, which cannot tell such positions apart."""
    low = next((t for t in subject.dtypes if t == torch.bfloat16), subject.dtype)
    base, n = replace(one_head(subject), batch=1), 300
    plans = [MaskPlan(), MaskPlan(window=3), MaskPlan(documents="runs"), MaskPlan(padding="deep"), MaskPlan(window=100)]
    cases = [replace(base, n_queries=n, n_keys=n, mask=plan) for plan in plans]
    rows = 4 if subject.can.cross else n
    cases += [replace(base, n_queries=rows, n_keys=n, mask=plan, dtype=low) for plan in plans]
    yield from each(subject, name, cases, _readout)


@conformance_check(quick=True)
def empty_rows(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """A row that sees no key gives exactly 0, with exactly 0 and finite gradient, and no NaN anywhere else."""
    plans = (
        MaskPlan(padding="all"),
        MaskPlan(padding="left"),
        MaskPlan(window=2, padding="holes"),
        MaskPlan(window=1, padding="right"),
    )
    cases = [replace(subject.base, n_queries=n, n_keys=n, mask=plan) for plan in plans for n in (4, 8)]
    cases += [replace(subject.base, n_queries=7, n_keys=4)]
    yield from each(subject, name, cases, _empty)


def _empty(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case)
    if subject.trains:
        inputs = inputs.leaves()
    with torch.set_grad_enabled(subject.trains):
        out = module(*inputs)
    visible = inputs.mask.dense(case.n_queries, case.n_keys, subject.device)
    empty = ~visible.any(-1).expand(case.batch, 1, -1)[..., None].expand_as(out)
    expect_finite(out, "out")
    expect_same(out.where(empty, 0), torch.zeros_like(out), "out", detail="this row sees no key")
    if not subject.trains:
        return
    out.square().sum().backward()
    lengths = {"q": empty.any((1, 3)), "k": ~visible.expand(case.batch, 1, -1, -1).any(2)[:, 0]}
    for name, t in inputs.tensors().items():
        if t.grad is None:
            continue
        expect_finite(t.grad, f"d {name}")
        dead = lengths.get("k" if name == "v" else name)
        if dead is not None:
            rows = dead[:, None, :, None].expand_as(t.grad)
            expect_same(
                t.grad.where(rows, 0),
                torch.zeros_like(t.grad),
                f"d {name}",
                detail="sees nothing, or is seen by nobody",
            )
