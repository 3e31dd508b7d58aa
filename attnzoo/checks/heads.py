"""Heads, batch rows, padding and documents: what must not mix, and what must not matter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnzoo.checks.cases import Case, Inputs, MaskPlan
from attnzoo.checks.compare import Failed, Skip, expect_close, expect_same
from attnzoo.checks.judge import each
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject
from attnzoo.checks.suite import conformance_check
from attnzoo.masks import Mask


def _run(subject: Subject, case: Case, inputs: Inputs) -> torch.Tensor:
    with torch.no_grad():
        return subject.build(case)(*inputs)


@conformance_check(quick=True)
def head_groups(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Query head h reads key/value head h // (H/G) and no other, unless heads mix: exactly the heads change that are due."""
    layouts = ((2, 2), (4, 2), (4, 1), (6, 3), (4, 4), (8, 2))
    cases = [
        replace(subject.base, heads=h, kv_heads=g, n_queries=n, n_keys=n, batch=1) for h, g in layouts for n in (1, 7)
    ]
    cases += [replace(subject.base, heads=4, kv_heads=2, n_queries=7, n_keys=7, bias=True)]
    # blocks enough that the heads of a group have to choose among them
    cases += [replace(subject.base, heads=4, kv_heads=2, n_queries=37, n_keys=37, batch=1)]
    yield from each(subject, name, cases, _groups)


def _groups(subject: Subject, case: Case) -> None:
    before, module = subject.inputs(case), subject.build(case)
    out, share = _run(subject, case, before), case.heads // case.kv_heads
    exact = subject.exact(module, before)
    for name in ("q", "k", "v") if case.n_keys > 1 else ("v",):
        t = getattr(before, name)
        for head in range(t.shape[1]):
            changed = before.map(torch.clone)
            getattr(changed, name)[:, head] += torch.linspace(
                1, 2, t[:, head].numel(), dtype=t.dtype, device=t.device
            ).view_as(t[:, head])
            moved = (_run(subject, case, changed) != out).flatten(2).any(2)[0].tolist()
            # a rule may give a key no weight at all, and the queries of a group may choose together what they read: of
            # the heads with these keys, those change that its definition says will
            felt = (subject.exact(module, changed) != exact).flatten(2).any(2)[0].tolist()
            # unless it declares that heads mix: then the definition alone says
            group = head // share if name == "q" else head
            due = [felt[h] and (h // share == group or not subject.can.heads_apart) for h in range(case.heads)]
            if moved != due:
                spelt = lambda flags: str([h for h, on in enumerate(flags) if on])  # noqa: E731
                raise Failed(
                    f"query heads {spelt(due)} change",
                    f"query heads {spelt(moved)} change",
                    f"{name} head {head} changed",
                    "" if felt == due else "a rule whose heads mix declares Capabilities(heads_apart=False)",
                )


@conformance_check()
def head_permutation(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Without parameters or patterns of their own, heads are interchangeable: permuting them permutes the output."""
    yield from each(
        subject, name, [replace(subject.base, heads=h, kv_heads=h, n_queries=9, n_keys=9) for h in (2, 4)], _permuted
    )


def _permuted(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case)
    if not subject.can.heads_apart:
        raise Skip("its heads mix")
    own = module.pattern(torch.arange(3)[:, None], torch.arange(3)[None])
    if list(module.parameters()) or (own is not None and own.dim() > 2) or inputs.x is not None:
        raise Skip("its heads have parameters or patterns of their own")
    turned, exact = inputs.map(lambda t: t.flip(1)), subject.exact(module, inputs)
    if not torch.allclose(subject.exact(module, turned).flip(1), exact, rtol=1e-9, atol=1e-9):
        raise Skip(f"by its definition the heads of {subject.name} differ")
    out, flipped = _run(subject, case, inputs), _run(subject, case, turned)
    expect_same(flipped.flip(1), out, "out", 8 * torch.finfo(case.dtype).eps * out.abs().max().item())


@conformance_check(quick=True)
def batch_rows(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """A batch row depends on itself alone: others may change, or be absent, and it stays the same."""
    plans = (MaskPlan(), MaskPlan(padding="right"), MaskPlan(documents="runs"), MaskPlan(window=3))
    cases = [replace(subject.base, batch=3, n_queries=n, n_keys=n, mask=plan) for plan in plans for n in (4, 9)]
    yield from each(subject, name, cases, _rows)


def _rows(subject: Subject, case: Case) -> None:
    if case.batch < 2:
        raise Skip("one row has no others")
    inputs = subject.inputs(case)
    out, last = _run(subject, case, inputs), case.batch - 1
    changed = inputs.map(torch.clone)
    for t in changed.tensors().values():
        t[:last] = 3 * t[:last].flip(-1) + 1
    again = _run(subject, case, changed)
    expect_same(again[last:], out[last:], f"out of batch row {last}", detail="only other rows were changed")
    if case.n_keys > case.batch and torch.equal(again[:last], out[:last]):
        raise Failed("other outputs in the rows that changed", "no change at all", f"rows 0..{last - 1}")
    held = {n: None if (t := getattr(inputs.mask, n)) is None else t[last:] for n in ("key_padding", "documents")}
    alone = inputs.map(lambda t: t[last:])
    alone.mask = Mask(inputs.mask.causal, inputs.mask.window, inputs.mask.sinks, inputs.mask.prefix, **held)
    bound = (
        16 * torch.finfo(case.dtype).eps * out.abs().max().item()
    )  # another batch may take other tiles, not other numbers
    expect_same(_run(subject, replace(case, batch=1), alone), out[last:], f"row {last} alone", bound)


@conformance_check()
def padding(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Padding on the right or left, whatever it holds, leaves the outputs of the real tokens as in a run without it."""
    cases = [
        replace(subject.base, n_queries=n, n_keys=n, mask=MaskPlan(padding=side))
        for side in ("right", "left")
        for n in (7, 12, 33)
    ]
    yield from each(subject, name, cases, _padding)


def _padding(subject: Subject, case: Case) -> None:
    side, pads = case.mask.padding, 3
    if side is None:
        raise Skip("no padding")
    free = replace(case, mask=MaskPlan())
    inputs, real = subject.inputs(free), slice(pads, None) if side == "left" else slice(0, case.n_keys)

    def widen(t: torch.Tensor) -> torch.Tensor:
        junk = torch.full_like(t[..., :pads, :], 30.0)
        return torch.cat([junk, t] if side == "left" else [t, junk], -2)

    wide = inputs.map(widen)
    total = case.n_keys + pads
    held = torch.zeros(case.batch, total, dtype=torch.bool, device=subject.device)
    held[:, real] = True
    wide.mask = Mask(key_padding=held)
    module = subject.build(case)
    exact = subject.exact(module, inputs)
    if side == "left" and not torch.allclose(subject.exact(module, wide)[:, :, real], exact, rtol=1e-9, atol=1e-9):
        raise Skip(f"by its definition {subject.name} depends on absolute positions, which left padding shifts")
    expect_close(
        _run(subject, case, wide)[:, :, real],
        exact,
        subject.plain(module, inputs),
        f"out with {pads} pads on the {side}",
    )


@conformance_check()
def documents(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Packed documents do not see each other: changing one leaves the others bitwise, and each equals a run of its own."""
    cases = [replace(subject.base, n_queries=n, n_keys=n, mask=MaskPlan(documents="runs")) for n in (6, 13, 33)]
    yield from each(subject, name, cases, _documents)


def _documents(subject: Subject, case: Case) -> None:
    if case.mask.documents is None or case.n_keys < 2:
        raise Skip("one document")
    inputs, cut = subject.inputs(case), case.n_keys // 2
    ids = (torch.arange(case.n_keys, device=subject.device) >= cut).long().expand(case.batch, -1)
    inputs.mask = Mask(documents=ids)
    out, changed = _run(subject, case, inputs), inputs.map(torch.clone)
    for t in changed.tensors().values():
        t[..., :cut, :] = 3 - 2 * t[..., :cut, :]
    allowed = 0.0 if subject.can.bitwise_prefix else 8 * torch.finfo(case.dtype).eps * out.abs().max().item()
    expect_same(
        _run(subject, case, changed)[:, :, cut:],
        out[:, :, cut:],
        f"out from row {cut}",
        allowed,
        "document 0 was changed",
    )
    module, first, second = (
        subject.build(case),
        inputs.map(lambda t: t[..., :cut, :]),
        inputs.map(lambda t: t[..., cut:, :]),
    )
    first.mask = second.mask = Mask()
    expect_close(out[:, :, :cut], subject.exact(module, first), subject.plain(module, first), "out of document 0")
    exact = subject.exact(module, second)
    if torch.allclose(
        subject.exact(module, inputs)[:, :, cut:], exact, rtol=1e-9, atol=1e-9
    ):  # else absolute positions matter
        expect_close(out[:, :, cut:], exact, subject.plain(module, second), "out of document 1")
