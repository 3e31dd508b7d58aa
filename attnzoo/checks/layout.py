"""How tensors lie in memory must not matter; inputs stay as they are; nothing unwritten is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.cases import Case, MaskPlan
from attnzoo.checks.compare import Failed, expect_close, expect_finite, expect_same
from attnzoo.checks.decoding import decode
from attnzoo.checks.judge import each
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject
from attnzoo.checks.suite import conformance_check


def _permuted(t: Tensor) -> Tensor:
    return t.transpose(1, 2).contiguous().transpose(1, 2)


def _sliced(t: Tensor) -> Tensor:
    wide = torch.full((*t.shape[:2], 2 * t.shape[2], t.shape[3] + 3), 9.0, dtype=t.dtype, device=t.device)
    part = wide[:, :, ::2, 1:-2]
    part.copy_(t)
    return part


def _column_major(t: Tensor) -> Tensor:
    return t.mT.contiguous().mT


def _expanded(t: Tensor) -> Tensor:
    return t[:1, :1].expand_as(t)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "tokens before heads": _permuted,
    "slices with gaps": _sliced,
    "last axis not contiguous": _column_major,
    "expanded, stride 0": _expanded,
}


@conformance_check()
def strides(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Permuted, sliced, column-major and expanded inputs give what contiguous copies of them give, forward and backward."""
    cases = [replace(subject.base, n_queries=n, n_keys=n, kind=kind) for kind in LAYOUTS for n in (1, 9, 33)]
    cases += [replace(subject.base, batch=84 // 4, n_queries=3, n_keys=3, dim=64, kind="tokens before heads")]
    yield from each(subject, name, cases, _strides)


def _strides(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case)
    lay = LAYOUTS[case.kind]
    odd = replace_tensors(inputs, lay)
    plain = odd.map(lambda t: t.contiguous().clone())
    with torch.no_grad():
        out = module(*odd)
    subject.expect_definition(module, plain, out, f"out, {case.kind}")
    if subject.trains:
        grads = []
        for given in (odd, plain):
            leaves = given.map(lambda t: t.detach().requires_grad_())
            # not the sum of squares, which is the same for every input where a rule normalises its output
            (
                module(*leaves) * torch.linspace(-1, 1, out.numel(), device=out.device).to(out).view_as(out)
            ).sum().backward()
            grads.append({n: t.grad for n, t in leaves.tensors().items()})
        scale = max(g.abs().max().item() for g in grads[1].values() if g is not None)
        for name, right in grads[1].items():
            if right is not None:
                expect_close(grads[0][name], right.double(), right, f"d {name}, {case.kind}", multiple=16, scale=scale)


def replace_tensors(inputs, lay):
    """q, k and v laid out anew; x has three axes and stays."""
    return type(inputs)(lay(inputs.q), lay(inputs.k), lay(inputs.v), inputs.mask, inputs.bias, inputs.x)


@conformance_check(quick=True)
def inputs_untouched(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """A call changes neither q, k, v, x nor the mask's tensors, nor the module's own state."""
    plans = (MaskPlan(), MaskPlan(padding="left"), MaskPlan(documents="runs"), MaskPlan(window=3))
    cases = [replace(subject.base, n_queries=n, n_keys=n, mask=plan) for plan in plans for n in (1, 9)]
    cases += [replace(subject.base, n_queries=9, n_keys=9, heads=4, kv_heads=2)]
    yield from each(subject, name, cases, _untouched)


def _untouched(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case)
    watched = dict(inputs.tensors()) | {
        n: t for n in ("key_padding", "documents") if (t := getattr(inputs.mask, n)) is not None
    }
    watched |= {f"state {n}": t for n, t in module.state_dict().items()}
    before = {n: t.clone() for n, t in watched.items()}
    with torch.no_grad():
        module(*inputs)
        chunks = (4, 1, case.n_keys - 5) if case.n_keys > 5 else (case.n_keys,)
        decode(module, inputs, chunks, _cache(subject, module, case))
    for name, t in watched.items():
        expect_same(t, before[name], name, detail="changed by the call")


def _cache(subject: Subject, module, case: Case):
    return subject.new_cache(module, case, case.n_keys)


@conformance_check(quick=True)
def outputs_kept(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """An output is memory of its own: no part of an input, and not overwritten by the next call."""
    cases = [replace(subject.base, n_queries=n, n_keys=n) for n in (1, 9)]
    yield from each(subject, name, cases, _kept)


def _kept(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case)
    cache = subject.new_cache(module, case, 2 * case.n_keys)
    for what, run in (("out", module), ("decoded out", lambda q, k, v, *rest: module.extend(q, k, v, cache, *rest))):
        with torch.no_grad():
            out = run(*inputs)
            before = out.clone()
            for name, t in inputs.tensors().items():
                if t.untyped_storage().data_ptr() == out.untyped_storage().data_ptr():
                    raise Failed("memory of its own", f"the memory of {name}", what)
            run(*subject.inputs(replace(case, seed=case.seed + 3)))
        expect_same(out, before, what, detail="changed by the next call")


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside, torch fills what `torch.empty` and its kin return with NaN."""
    import torch.utils.deterministic

    deterministic: Any = torch.utils.deterministic

    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        deterministic.fill_uninitialized_memory = filled


@conformance_check(quick=True)
def unwritten_memory(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """With uninitialised memory filled with NaN, the output, the decoded output and the gradients are finite and the same."""
    plans = (MaskPlan(), MaskPlan(padding="all"), MaskPlan(window=3))
    cases = [replace(subject.base, n_queries=n, n_keys=n, mask=plan) for plan in plans for n in (7, 34)]
    yield from each(subject, name, cases, _unwritten)


def _unwritten(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case)
    with torch.no_grad():
        before = module(*inputs)
        with poisoned_memory():
            after = module(*inputs)
            cache = _cache(subject, module, case)
            first = max(case.n_keys - 2, 1)
            chunks = (first, *(1,) * (case.n_keys - first))
            decoded = decode(module, inputs, chunks, cache)
    expect_finite(after, "out")
    expect_same(after, before, "out", detail="differs when uninitialised memory holds NaN")
    expect_finite(decoded, "decoded out")
    if subject.trains:
        with poisoned_memory():
            leaves = inputs.leaves()
            module(*leaves).square().sum().backward()
        for name, t in leaves.tensors().items():
            if t.grad is not None:
                expect_finite(t.grad, f"d {name}")
