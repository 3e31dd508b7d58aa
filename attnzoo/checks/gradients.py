"""Backward passes against the definition's, and against finite differences."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from attnzoo.checks.cases import Case, Inputs, MaskPlan
from attnzoo.checks.compare import Failed, InPrecision, Skip, expect_close, expect_same, expect_unbiased
from attnzoo.checks.judge import each
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject, one_head, roundings
from attnzoo.checks.suite import conformance_check
from attnzoo.contract import Attention
from attnzoo.seeds import reseed


@conformance_check(quick=True)
def gradients(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """The gradients of q, k, v, x, a learned bias and the module's own parameters equal the definition's."""
    base = subject.base
    cases = [replace(base, n_queries=n, n_keys=n) for n in ((5, 17) if quick else (1, 2, 5, 8, 17, 34))]
    cases += [replace(base, heads=4, kv_heads=2, n_queries=9, n_keys=9), replace(base, n_queries=3, n_keys=9)]
    halves = [dtype for dtype in subject.dtypes if dtype.itemsize == 2]
    cases += [replace(base, n_queries=17, n_keys=17, dtype=dtype) for dtype in halves[: 1 if quick else None]]
    cases += subject.tile_cases(MaskPlan(), MaskPlan(padding="left"), MaskPlan(window=65, documents="runs"))
    if not quick:
        cases += [
            replace(base, heads=4, kv_heads=1, n_queries=9, n_keys=9),
            replace(base, n_queries=6, n_keys=6, value_dim=3),
        ]
        plans = [MaskPlan(window=3), MaskPlan(padding="left"), MaskPlan(documents="runs"), MaskPlan(causal=False)]
        plans += [MaskPlan(prefix=3), MaskPlan(window=2, padding="holes")]
        cases += [replace(base, n_queries=9, n_keys=9, mask=plan) for plan in plans]
        cases += [replace(base, n_queries=9, n_keys=9, bias=True, bias_gradient=learned) for learned in (False, True)]
        cases += [replace(base, n_queries=2 * e + 1, n_keys=2 * e + 1, batch=1, options="own") for e in subject.edges]
        cases += [replace(base, n_queries=5, n_keys=5, dtype=dtype) for dtype in halves]
        cases += [replace(one_head(subject), batch=1, n_queries=n, n_keys=n) for n in (129, 300)]
        cases += [replace(base, n_queries=5, n_keys=5, batch=4)]
        cases += [
            replace(base, n_queries=9, n_keys=9, kernel=k) for k in subject.kernels if k not in ("auto", "compiled")
        ]
    yield from each(subject, name, cases, gradients_agree, training=True)


def gradients_agree(subject: Subject, case: Case) -> None:
    """Every gradient is the definition's, and so is the output while they are recorded."""
    module, inputs = subject.build(case), subject.inputs(case)
    if type(module).define is Attention.define and type(module).reference is not Attention.reference:
        raise Skip("its reference overrides the class's and has no gradient; see gradients_by_difference")
    weight = upstream(inputs)
    found = collect(module, inputs, module.forward, weight)
    subject.expect_definition(module, inputs, module(*inputs.leaves()).detach(), "out while gradients are recorded")
    double = copy.deepcopy(module).double()
    exact = collect(double, inputs.double(), lambda *a: double.define(*a)[0], weight)
    plain = _plain(module, inputs, weight)
    # a gradient may cancel to 0, as that of one key's softmax does: the values' gradient sets the scale
    scale = max(g.abs().max().item() for n in "qkv" if (g := exact[n]) is not None)
    for name, gradient in exact.items():
        own = found[name]
        if gradient is None and own is None:
            continue
        if own is None or gradient is None:
            right, wrong = ("a gradient", "none") if own is None else ("none", "a gradient")
            raise Failed(right, wrong, f"d {name}")
        moved = partial(_moved, double, inputs, weight, name, exact, scale)
        expect_close(own, gradient, plain.get(name), f"d {name}", scale=scale, moved=moved)
        if case.dtype.itemsize == 2:
            expect_unbiased(own, gradient, plain.get(name), f"d {name}", scale)


def _plain(module: Attention, inputs: Inputs, weight: Tensor) -> dict[str, Tensor | None]:
    """The definition's gradients in the inputs' own precision, as `Subject.plain` its output."""
    try:
        with InPrecision(inputs.q.dtype):
            return collect(module, inputs, lambda *a: module.define(*a)[0], weight)
    except RuntimeError:  # such as an operation without a half-precision kernel
        return {}


def _moved(double: Attention, inputs: Inputs, weight: Tensor, name: str, exact: dict, scale: float) -> float:
    """How far the definition's gradient moves when every input, parameter and number that comes from upstream is rounded once,
    at random; at least what n terms that cancel leave of their rounding, which grows as sqrt(n) (Higham and Mary, SIAM J. Sci.
    Comput. 41, 2019): n is D, and of a parameter D for each row; half types are summed in wider ones."""
    right, wide = exact[name], torch.promote_types(inputs.q.dtype, torch.float32)
    terms = inputs.q.shape[-1] * (inputs.q[..., 0].numel() if name.startswith("parameter") else 1)
    far = torch.finfo(wide).eps * scale * terms**0.5
    assert right is not None
    for other, near, above in roundings(double, inputs, weight):
        found = collect(other, near, lambda *a: other.define(*a)[0], above)[name]  # noqa: B023
        if found is not None:
            far = max(far, (found - right).abs().max().item())
    return far


def upstream(inputs: Inputs) -> Tensor:
    """The gradient that reaches the output, (B, H, Tq, Dv), in the inputs' type: the same numbers for every computation of
    it, so it is drawn once, and not within `InPrecision`."""
    shape, generator = (*inputs.q.shape[:3], inputs.v.shape[3]), torch.Generator().manual_seed(5)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(inputs.q)


def collect(module: Attention, inputs: Inputs, function, weight: Tensor) -> dict[str, Tensor | None]:
    """The gradients of the output times ``weight``, summed."""
    leaves = inputs.leaves()
    named = dict(leaves.tensors())
    named |= {f"parameter {n}": p for n, p in module.named_parameters()}
    if leaves.bias is not None:
        named |= {f"bias.{n}": p for n, p in leaves.bias.named_parameters()}
    out = function(*leaves)
    found = torch.autograd.grad((out * weight.to(out)).sum(), list(named.values()), allow_unused=True)
    return dict(zip(named, found, strict=True))


@conformance_check()
def gradients_apart(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Gradients do not depend on calls in between, on which inputs want one, or on how the upstream gradient lies in memory."""
    base = subject.base
    cases = [replace(base, n_queries=n, n_keys=n) for n in (9, 35)]
    yield from each(subject, name, cases, _apart, training=True)


def _apart(subject: Subject, case: Case) -> None:
    module, first, second = subject.build(case), subject.inputs(case), subject.inputs(replace(case, seed=case.seed + 5))
    generator = torch.Generator().manual_seed(6)
    shape = (*first.q.shape[:3], first.v.shape[3])
    weight = torch.randn(shape, generator=generator, dtype=torch.float64).to(first.q)
    right = [_backward(t.leaves(), module, weight) for t in (first, second)]
    given = weight.clone()
    leaves = [t.leaves() for t in (first, second)]
    outs = [module(*t) for t in leaves]
    for t, out, due in zip(leaves, outs, right, strict=True):  # both forward passes came before both backward passes
        out.backward(given)
        _expect_gradients(_gradients_of(t), due, "after another call")
        expect_same(given, weight, "the upstream gradient", detail="changed by the backward pass")
    turned = weight.transpose(1, 2).contiguous().transpose(1, 2)
    for what, upstream in (("tokens before heads", turned), ("stride 0", weight[:1, :1].expand(shape))):
        due = _backward(first.leaves(), module, upstream.contiguous())
        found = _backward(first.leaves(), module, upstream)
        _expect_gradients(found, due, f"upstream gradient with {what}")
    for name in (name for name, due in right[0].items() if due is not None):
        only = first.map(lambda t: t.detach().clone())
        getattr(only, name).requires_grad_()
        module(*only).backward(weight)
        _expect_gradients(_gradients_of(only), {name: right[0][name]}, f"{name} alone wants a gradient")


def _backward(leaves: Inputs, module: Attention, upstream: Tensor) -> dict[str, Tensor | None]:
    module(*leaves).backward(upstream)
    return _gradients_of(leaves)


def _gradients_of(leaves: Inputs) -> dict[str, Tensor | None]:
    return {name: t.grad for name, t in leaves.tensors().items()}


def _expect_gradients(found: dict[str, Tensor | None], due: dict[str, Tensor | None], when: str) -> None:
    """Equal but for the order of summation, which another path may change."""
    scale = max(g.abs().max().item() for g in due.values() if g is not None)
    for name, gradient in due.items():
        own = found[name]
        if gradient is not None and own is None:
            raise Failed("a gradient", "none", f"d {name}", when)
        if gradient is not None and own is not None:
            expect_same(own, gradient, f"d {name}", 16 * torch.finfo(own.dtype).eps * scale, when)


@conformance_check()
def gradients_by_difference(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """In float64 the gradients of q, k, v and x are those of finite differences (gradcheck), also under dropout from one seed."""
    base = replace(subject.base, batch=1, dtype=torch.float64)
    small = replace(base, dim=2) if not subject.reasons(replace(base, dim=2)) else base
    cases = [replace(small, n_queries=n, n_keys=n) for n in (1, 4)]
    cases += [
        replace(small, n_queries=5, n_keys=5, mask=plan) for plan in (MaskPlan(padding="left"), MaskPlan(window=2))
    ]
    cases += [
        replace(small, n_queries=4, n_keys=4, heads=2, kv_heads=1),
        replace(small, n_queries=4, n_keys=4, dropout=0.4),
    ]
    if torch.float64 not in subject.can.dtypes:
        cases = cases[:1]
    yield from each(subject, name, cases, _differences, training=True)


def _differences(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case).leaves()

    def run(*tensors: Tensor) -> Tensor:
        q, k, v = tensors[:3]
        reseed(7, subject.device)
        return module(q, k, v, inputs.mask, inputs.bias, tensors[3] if len(tensors) > 3 else None)

    try:
        torch.autograd.gradcheck(run, tuple(inputs.tensors().values()), fast_mode=False)
    except GradcheckError as error:
        said = " ".join(str(error).split())
        raise Failed(
            "the gradient of finite differences", said[:200], "gradcheck, inputs in the order q, k, v, x"
        ) from error
