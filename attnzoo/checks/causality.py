"""Nothing is read that the mask hides: by gradient, and by bitwise comparison after a change. Closeness alone finds no leak."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attnzoo.checks.cases import Case, Inputs, MaskPlan
from attnzoo.checks.compare import Failed, expect_same
from attnzoo.checks.judge import each
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject, one_head
from attnzoo.checks.suite import conformance_check

MOST_ROWS = 48
MOST_SCORES = 2**22
"""Elements of one head's scores over all rows that are tried of a long input."""
PLANS = (
    MaskPlan(window=3), MaskPlan(window=1), MaskPlan(window=3, sinks=2), MaskPlan(prefix=4), MaskPlan(padding="right"),
    MaskPlan(padding="left"), MaskPlan(padding="holes"), MaskPlan(documents="runs"), MaskPlan(documents="mixed"),
    MaskPlan(causal=False, padding="holes"), MaskPlan(causal=False, documents="runs"),
    MaskPlan(window=4, padding="holes", documents="runs"),
)  # fmt: skip


def _lengths(subject: Subject, quick: bool) -> Iterator[Case]:
    """One head dim, one example: the checks below put the queries or cuts they look at into the batch."""
    base = replace(subject.base, batch=1)
    for n in (2, 9, 17) if quick else (2, 3, 9, 17, 33, 70):
        yield replace(base, n_queries=n, n_keys=n)
    if not quick:
        for edge in subject.edges:
            yield replace(base, n_queries=2 * edge + 2, n_keys=2 * edge + 2, options="own")
        for kernel in subject.kernels:
            if kernel not in ("auto", "compiled"):
                yield replace(base, n_queries=17, n_keys=17, kernel=kernel)
        if base.heads % 2 == 0:
            yield replace(base, heads=4, kv_heads=2, n_queries=9, n_keys=9)
        yield replace(base, n_queries=4, n_keys=9)


def rows_to_try(subject: Subject, case: Case) -> Tensor:
    """Query rows: all of a short input; of a long one some next to block, chunk and window edges, and as many at random."""
    n = case.n_queries
    if n <= MOST_ROWS:
        return torch.arange(n, device=subject.device)
    edges = (*subject.edges, 1024, 128, 512, 256, 64, 32, 16, 4)
    near = [r for m in (1, 2) for d in (-1, 0, -2) for e in edges if 0 <= (r := e * m + d) < n]
    half = min(MOST_ROWS, max(MOST_SCORES // (n * case.n_keys), 12)) // 2
    rows = {0, n - 2, n - 1, *list(dict.fromkeys(near))[:half], *random.Random(n).sample(range(n), half)}
    return torch.tensor(sorted(rows), device=subject.device)


def spread(subject: Subject, case: Case, rows: Tensor) -> Inputs:
    """The case's tensors, repeated once for each row to look at."""
    inputs = subject.inputs(replace(case, batch=1))
    repeated = inputs.map(lambda t: t.expand(len(rows), *t.shape[1:]).clone())
    mask = case.mask.build(1, case.n_keys, subject.device)  # one mask row for all
    return Inputs(repeated.q, repeated.k, repeated.v, mask, inputs.bias, repeated.x)


@conformance_check(quick=True)
def future_by_change(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Changing every token after any position leaves the outputs up to it bitwise the same and changes later ones."""
    yield from each(subject, name, _lengths(subject, quick), suffix_unread)
    if not quick:
        base = replace(subject.base, batch=1)
        masked = [
            replace(base, n_queries=14, n_keys=14, mask=plan) for plan in PLANS if plan.causal and not plan.prefix
        ]
        far = [replace(one_head(subject), batch=1, n_queries=n, n_keys=n) for n in (300, 1100)]
        yield from each(subject, name, masked + far, suffix_unread)


def suffix_unread(subject: Subject, case: Case) -> None:
    rows = rows_to_try(subject, case)
    module, before = subject.build(case), spread(subject, case, rows)
    offset = case.n_keys - case.n_queries
    other = subject.inputs(replace(case, batch=1, seed=case.seed + 77))
    fresh = {name: 3 * t for name, t in other.tensors().items()}
    after = before.map(torch.clone)
    for name, t in after.tensors().items():
        cut = rows if name in ("q", "x") else rows + offset
        time = torch.arange(t.shape[-2], device=t.device)
        later = (time > cut[:, None]).view(len(rows), *(1,) * (t.dim() - 3), -1, 1)
        t.copy_(torch.where(later, fresh[name], t))
    with torch.no_grad():
        first, second = module(*before), module(*after)
    past = (torch.arange(case.n_queries, device=rows.device) <= rows[:, None])[:, None, :, None].expand_as(first)
    allowed = 0.0 if subject.can.bitwise_prefix else 8 * torch.finfo(case.dtype).eps * first.abs().max().item()
    detail = "output[cut, head, position, channel] before and after a change of the tokens behind the cut"
    expect_same(second.where(past, 0), first.where(past, 0), f"cuts after rows {_spelt(rows)}, out", allowed, detail)
    if case.mask != MaskPlan():  # there the last row may see none of the tokens that changed
        return
    moved = (first[:, :, -1] != second[:, :, -1]).flatten(1).any(1) | (rows >= case.n_queries - 1)
    if not moved.all():
        due = (subject.exact(module, before) != subject.exact(module, after))[:, :, -1].flatten(1).any(1)
        if (unmoved := rows[due & ~moved]).numel():
            raise Failed(
                "a later output that depends on later tokens, as the definition's does",
                "no change at all",
                f"tokens after row {unmoved[0].item()} changed",
            )


@conformance_check(quick=True)
def future_by_gradient(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """The gradient of each output row with respect to every hidden token is exactly 0, in q, k, v and x."""
    yield from each(subject, name, _lengths(subject, quick), _row_gradients, training=True)


@conformance_check()
def hidden_by_gradient(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Under every mask field, a row's gradient with respect to keys and values that the mask hides is exactly 0."""
    base = replace(subject.base, batch=1)
    cases = [replace(base, n_queries=n, n_keys=n, mask=plan) for plan in PLANS for n in (9, 14)]
    yield from each(subject, name, cases, _row_gradients, training=True)


@conformance_check()
def hidden_by_change(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Under every mask field, another key and value of any one token leave the rows that may not see it bitwise the same."""
    base = replace(subject.base, batch=1)
    yield from each(subject, name, [replace(base, n_queries=14, n_keys=14, mask=plan) for plan in PLANS], _one_token)


def _one_token(subject: Subject, case: Case) -> None:
    """One batch row a token: there its key and value are others."""
    tokens = torch.arange(case.n_keys, device=subject.device)
    module, before = subject.build(case), spread(subject, case, tokens)
    after = before.map(torch.clone)
    for t in (after.k, after.v):
        t[tokens, :, tokens] = 3 - 2 * t[tokens, :, tokens]
    with torch.no_grad():
        first, second = module(*before), module(*after)
    hidden = ~before.mask.dense(case.n_queries, case.n_keys, subject.device)[0, 0].T  # (tokens, rows)
    unseen = hidden[:, None, :, None].expand_as(first)
    allowed = 0.0 if subject.can.bitwise_prefix else 8 * torch.finfo(case.dtype).eps * first.abs().max().item()
    detail = "output[changed token, head, row, channel] where the mask hides the token from the row"
    expect_same(second.where(unseen, 0), first.where(unseen, 0), "out", allowed, detail)


def _row_gradients(subject: Subject, case: Case) -> None:
    """One batch row a query row, whose loss is that query row alone: what it may not see must get exactly no gradient."""
    rows = rows_to_try(subject, case)
    inputs = spread(subject, case, rows).leaves()
    module, n = subject.build(case), len(rows)
    out = module(*inputs)
    weight = torch.linspace(0.5, 1.5, out[0, :, 0].numel(), device=out.device, dtype=out.dtype).view_as(out[0, :, 0])
    (out[torch.arange(n), :, rows] * weight).sum().backward()

    positions = torch.arange(case.n_keys, device=rows.device)
    i = (rows + case.n_keys - case.n_queries)[:, None]
    visible = inputs.mask.at(i, positions[None, :])
    visible = (visible[0] if visible.dim() == 3 else visible).to(rows.device)
    # a gate or a query of an earlier token may be read through what it left behind: there only the future counts
    past = positions[None, :] <= i if case.mask.causal and not case.mask.prefix else torch.ones_like(visible)
    for name, t in inputs.tensors().items():
        if t.grad is None:
            continue
        seen = (
            visible
            if name in ("k", "v")
            else past[:, case.n_keys - t.shape[-2] :]
            if case.n_queries <= case.n_keys
            else None
        )
        if seen is None:
            continue
        reached = t.grad.abs().nan_to_num(torch.inf)
        reached = reached.amax((1, 3)) if reached.dim() == 4 else reached.amax(2)  # (rows, tokens)
        leak = reached.masked_fill(seen, 0)
        if leak.max() > 0:
            at = leak.nonzero()[0].tolist()
            where = f"d out[row {rows[at[0]].item()}] / d {name}[position {at[1]}]"
            raise Failed("0 exactly", f"{leak[tuple(at)].item():.6g}", where, "the mask hides this token from this row")


def _spelt(rows: Tensor) -> str:
    listed = rows.tolist()
    return f"0..{listed[-1]}" if listed == list(range(len(listed))) else str(listed)
