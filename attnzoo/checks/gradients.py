"""Backward passes against the definition's, and against finite differences."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from attnzoo.checks.cases import Case, Inputs, MaskPlan
from attnzoo.checks.compare import Failed, InPrecision, Skip, expect_close
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject, each
from attnzoo.checks.suite import conformance_check
from attnzoo.contract import Attention


@conformance_check(quick=True)
def gradients(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """The gradients of q, k, v, x, a learned bias and the module's own parameters equal the definition's."""
    base = subject.base
    cases = [replace(base, n_queries=n, n_keys=n) for n in ((5, 17) if quick else (1, 2, 5, 8, 17, 34))]
    cases += [replace(base, heads=4, kv_heads=2, n_queries=9, n_keys=9), replace(base, n_queries=3, n_keys=9)]
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
        cases += [
            replace(base, n_queries=5, n_keys=5, dtype=dtype) for dtype in subject.dtypes[1:] if dtype == torch.bfloat16
        ]
        cases += [
            replace(base, n_queries=9, n_keys=9, kernel=k) for k in subject.cls.kernels if k not in ("auto", "compiled")
        ]
    yield from each(subject, name, cases, _gradients, training=True)


def _gradients(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case)
    if type(module).define is Attention.define and type(module).reference is not Attention.reference:
        raise Skip("its reference overrides the class's and has no gradient; see gradients_by_difference")
    found = collect(module, inputs, module.forward)
    double = copy.deepcopy(module).double()
    exact = collect(double, inputs.double(), lambda *a: double.define(*a)[0])
    try:
        with InPrecision(case.dtype):
            plain = collect(module, inputs, lambda *a: module.define(*a)[0])
    except RuntimeError:  # such as an operation without a half-precision kernel
        plain = {}
    # a gradient may cancel to 0, as that of one key's softmax does: the values' gradient sets the scale
    scale = max(g.abs().max().item() for n in "qkv" if (g := exact[n]) is not None)
    for name, gradient in exact.items():
        own = found[name]
        if gradient is None and own is None:
            continue
        if own is None or gradient is None:
            right, wrong = ("a gradient", "none") if own is None else ("none", "a gradient")
            raise Failed(right, wrong, f"d {name}")
        expect_close(own, gradient, plain.get(name), f"d {name}", scale=scale)


def collect(module: Attention, inputs: Inputs, function) -> dict[str, Tensor | None]:
    """The gradients of a fixed weighted sum of the output."""
    leaves = inputs.leaves()
    named = dict(leaves.tensors())
    named |= {f"parameter {n}": p for n, p in module.named_parameters()}
    if leaves.bias is not None:
        named |= {f"bias.{n}": p for n, p in leaves.bias.named_parameters()}
    out = function(*leaves)
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.device, out.dtype)
    found = torch.autograd.grad((out * weight).sum(), list(named.values()), allow_unused=True)
    return dict(zip(named, found, strict=True))


@conformance_check()
def gradients_by_difference(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """In float64 the gradients of q, k, v and x are those of finite differences (gradcheck)."""
    base = replace(subject.base, batch=1, dtype=torch.float64)
    small = replace(base, dim=2) if not subject.reasons(replace(base, dim=2)) else base
    cases = [replace(small, n_queries=n, n_keys=n) for n in (1, 4)]
    cases += [
        replace(small, n_queries=5, n_keys=5, mask=plan) for plan in (MaskPlan(padding="left"), MaskPlan(window=2))
    ]
    cases += [replace(small, n_queries=4, n_keys=4, heads=2, kv_heads=1)]
    if torch.float64 not in subject.can.dtypes:
        cases = cases[:1]
    yield from each(subject, name, cases, _differences, training=True)


def _differences(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case).leaves()

    def run(*tensors: Tensor) -> Tensor:
        q, k, v = tensors[:3]
        return module(q, k, v, inputs.mask, inputs.bias, tensors[3] if len(tensors) > 3 else None)

    try:
        torch.autograd.gradcheck(run, tuple(inputs.tensors().values()), fast_mode=False)
    except GradcheckError as error:
        said = " ".join(str(error).split())
        raise Failed(
            "the gradient of finite differences", said[:200], "gradcheck, inputs in the order q, k, v, x"
        ) from error
