"""Cases far out: thousands of keys, many batch rows, many heads, wide heads. Small inputs do not reach what begins there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnzoo.checks.cases import Case, Inputs, MaskPlan
from attnzoo.checks.causality import suffix_unread
from attnzoo.checks.compare import CAP, Skip, expect_same
from attnzoo.checks.decoding import decode, decodes
from attnzoo.checks.definition import output_agrees
from attnzoo.checks.gradients import gradients_agree
from attnzoo.checks.judge import each
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject, one_head
from attnzoo.checks.suite import conformance_check
from attnzoo.contract import Attention

MANY, SQUARE = 4100, 2100
"""Keys under a few queries at the end; queries and keys of a whole pass. Each a little more than a power of two."""
LAST = 8
"""Queries at the end."""


@conformance_check()
def far_keys(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """At the end of 4100 keys outputs and gradients are the definition's, and no key behind a query moves it."""
    base = replace(one_head(subject), batch=1, options="own")
    end = replace(base, n_queries=LAST, n_keys=MANY)
    plans = (MaskPlan(), MaskPlan(padding="deep"), MaskPlan(documents="runs"), MaskPlan(window=3000, sinks=3))
    yield from each(subject, name, [replace(end, mask=plan) for plan in plans], output_agrees, shrink=False)
    yield from each(subject, name, [end], suffix_unread, shrink=False)
    yield from each(subject, name, [end], gradients_agree, training=True, shrink=False)


@conformance_check()
def far_rows(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """In a pass over 2100 tokens, late rows are the definition's, also decoded, and stay bitwise when later tokens change.

    A definition that has to be computed whole takes minutes at such a length: a rule with one is held to its own decoding, of
    4100 tokens, within `CAP`.
    """
    n = MANY if _chained(subject) else SQUARE
    case = replace(one_head(subject), batch=1, n_queries=n, n_keys=n, options="own")
    yield from each(subject, name, [case], _late_rows, shrink=False)


def _chained(subject: Subject) -> bool:
    return subject.can.needs_x or not subject.can.cross


def _late_rows(subject: Subject, case: Case) -> None:
    module, inputs, n = subject.build(case), subject.inputs(case), case.n_keys
    other = subject.inputs(replace(case, seed=case.seed + 77))
    with torch.no_grad():
        out = module(*inputs)
        for cut in (n // 2, n - LAST):
            held = {name: t.clone() for name, t in inputs.tensors().items()}
            for name, t in held.items():
                t[..., cut:, :] = 3 * other.tensors()[name][..., cut:, :]
            changed = Inputs(held["q"], held["k"], held["v"], inputs.mask, inputs.bias, held.get("x"))
            allowed = 0.0 if subject.can.bitwise_prefix else 8 * torch.finfo(case.dtype).eps * out.abs().max().item()
            detail = f"rows before token {cut}, before and after a change of it and all behind it"
            expect_same(module(*changed)[:, :, :cut], out[:, :, :cut], "out", allowed, detail)
        half = n // 2
        decoded = decode(module, inputs, (half, n - half - 3, 1, 1, 1), subject.new_cache(module, case, n))
    if _chained(subject):
        expect_same(decoded, out, "decoded out", CAP[case.dtype] * out.abs().max().item())
        return
    for first in (1020, 2044, n - LAST):  # next to powers of two, and the end
        expect_rows(subject, module, inputs, out, first)
    expect_rows(subject, module, inputs, decoded, n - LAST, "decoded out")


def expect_rows(
    subject: Subject, module: Attention, inputs: Inputs, out: torch.Tensor, first: int, what: str = "out"
) -> None:
    """Raise `Failed` unless the `LAST` rows from ``first`` on are the definition's of the keys up to them."""
    end = first + LAST
    rows = Inputs(
        inputs.q[:, :, first:end], inputs.k[:, :, :end], inputs.v[:, :, :end], inputs.mask, inputs.bias, inputs.x
    )
    subject.expect_definition(module, rows, out[:, :, first:end], f"{what} from row {first} on")


@conformance_check()
def far_batches(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """With 9 and 17 batch rows, 9 to 18 heads, head dims from 128 on, output, gradients and decoding are the definition's."""
    one, n = one_head(subject), 24
    plans = [MaskPlan(padding=shape) for shape in ("right", "left", "holes")]
    plans += [MaskPlan(documents=shape) for shape in ("runs", "mixed")]
    plans += [MaskPlan(padding="deep", documents="many", window=9)]
    batches = [replace(one, batch=b, n_queries=n, n_keys=n, mask=plan) for b in (9, 17) for plan in plans]
    batches += [replace(one, batch=b, n_queries=n, n_keys=n) for b in (9, 17)]
    base = replace(subject.base, n_queries=9, n_keys=9)
    layouts = [replace(base, heads=h, kv_heads=g) for h, g in ((9, 9), (16, 16), (16, 8), (18, 9))]
    layouts += [replace(layouts[1], mask=MaskPlan(padding="left"))]
    wide = [replace(one, n_queries=33, n_keys=33, dim=dim) for dim in (128, 160, 192)]
    wide += [replace(wide[0], mask=MaskPlan(padding="left"))]
    yield from each(subject, name, [*batches, *layouts, *wide], output_agrees)
    trained = [batches[0], batches[9], batches[-1], *layouts[:3], wide[0]]
    yield from each(subject, name, trained, gradients_agree, training=True)
    told = [batches[-1], batches[1], layouts[0], replace(wide[0], batch=1)]
    yield from each(subject, name, told, _decodes)


def _decodes(subject: Subject, case: Case) -> None:
    if case.n_keys < 9:
        raise Skip("short inputs are decoded in every split by the check of decoding")
    decodes(subject, case, most=2)
