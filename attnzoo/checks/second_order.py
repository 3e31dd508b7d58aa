"""Second derivatives and the transforms of torch.func: right, or refused in so many words."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.cases import Case, MaskPlan
from attnzoo.checks.compare import Declined, Failed, expect_same
from attnzoo.checks.judge import each
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject
from attnzoo.checks.suite import conformance_check
from attnzoo.errors import Refused
from attnzoo.seeds import reseed

STEP = 1e-5
"""Of central differences in float64: the third derivative leaves STEP², rounding 1e-16/STEP, both some 1e-10."""
ALLOWED = 1e-6
"""Of the largest entry: four digits above both."""
REFUSALS = (
    "not implemented", "not support", "no second derivative", "marked with @once_differentiable", "setup_context",
    "generate_vmap_rule", "vmap:", "Batching rule",
)  # fmt: skip
"""How torch says that a kernel has no such derivative, or that torch.func does not know it."""

Tensors = Sequence[Tensor]


@conformance_check()
def second_derivative(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """In float64 H·d by two backward passes, in either form, is what differences of the gradient say, or it is refused."""
    yield from each(subject, name, _cases(subject), _second, training=True)


@conformance_check()
def transforms(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """grad, vmap(grad), jvp, and both of grad by torch.func are what autograd and differences say, or they are refused."""
    yield from each(subject, name, _cases(subject)[:2], _transformed, training=True)


def _cases(subject: Subject) -> list[Case]:
    base = replace(subject.base, dtype=torch.float64)
    nine, *others = (replace(base, n_queries=n, n_keys=n) for n in (9, 17))
    others += [replace(nine, mask=plan) for plan in (MaskPlan(padding="left"), MaskPlan(documents="runs"))]
    others += [replace(nine, bias=True, bias_gradient=True), replace(nine, dropout=0.4), replace(nine, n_queries=3)]
    others += [replace(nine, kernel=k) for k in subject.kernels if k not in ("auto", "compiled")]
    return [nine, *(case for case in others if not subject.reasons(case, training=True))]


def _second(subject: Subject, case: Case) -> None:
    module, inputs = copy.deepcopy(subject.build(case)), subject.inputs(case).leaves()
    named = {**inputs.tensors(), **{f"parameter {n}": p for n, p in module.named_parameters()}}
    if inputs.bias is not None:
        inputs.bias.double()  # or a step would be lost in it
        named |= {f"bias.{n}": p for n, p in inputs.bias.named_parameters()}
    leaves, upstream = list(named.values()), _upstream(inputs)

    def gradients(keep: bool = False) -> Tensors:
        reseed(7, subject.device)  # dropout drops the same weights each time
        loss = _loss(module(*inputs), upstream)
        return _filled(torch.autograd.grad(loss, leaves, create_graph=keep, allow_unused=True), leaves)

    def differences(way: Tensors) -> Tensors:
        at, held = [], [t.detach().clone() for t in leaves]
        for step in (STEP, -STEP):
            with torch.no_grad():
                for t, start, d in zip(leaves, held, way, strict=True):
                    t.copy_(start + step * d)
            at.append(gradients())
        with torch.no_grad():
            for t, start in zip(leaves, held, strict=True):
                t.copy_(start)
        return [(a - b) / (2 * STEP) for a, b in zip(*at, strict=True)]

    def twice(way: Tensors) -> Tensors:
        return _filled(torch.autograd.grad(dot(gradients(keep=True), way), leaves, allow_unused=True), leaves)

    def backward(way: Tensors) -> Tensors:
        for t in leaves:
            t.grad = None
        dot(gradients(keep=True), way).backward()
        return _filled([t.grad for t in leaves], leaves)

    _expect_curvature(list(named), leaves, differences, {"torch.autograd.grad": twice, "backward()": backward})


def _transformed(subject: Subject, case: Case) -> None:
    from torch.func import grad, jvp, vmap

    module, inputs = subject.build(case), subject.inputs(case)
    named, upstream = inputs.tensors(), _upstream(inputs)
    tensors = tuple(named.values())
    every = tuple(range(len(tensors)))

    def loss(*tensors: Tensor, upstream: Tensor = upstream) -> Tensor:
        q, k, v, *x = tensors
        return _loss(module(q, k, v, inputs.mask, inputs.bias, *x), upstream)

    def of_row(*row: Tensor) -> Tensor:
        *own, weight = (t[None] for t in row)
        return loss(*own, upstream=weight)

    gradients = grad(loss, every)

    def differences(way: Tensors) -> Tensors:
        at = [gradients(*(t + step * d for t, d in zip(tensors, way, strict=True))) for step in (STEP, -STEP)]
        return [(a - b) / (2 * STEP) for a, b in zip(*at, strict=True)]

    leaves = [t.clone().requires_grad_() for t in tensors]
    right = _filled(torch.autograd.grad(loss(*leaves), leaves, allow_unused=True), leaves)
    _expect(named, ask(gradients, *tensors), right, "torch.func.grad")
    _expect(named, ask(vmap(grad(of_row, every)), *tensors, upstream), right, "vmap of torch.func.grad")
    way = _way(tensors, 0)
    _expect(["the loss"], ask(jvp, loss, tensors, way)[1:], [dot(right, way)], "torch.func.jvp")
    forms = {
        "grad of torch.func.grad": lambda way: grad(lambda *t: dot(gradients(*t), way), every)(*tensors),
        "jvp of torch.func.grad": lambda way: jvp(gradients, tensors, tuple(way))[1],
    }
    _expect_curvature(list(named), tensors, differences, forms)


def _expect_curvature(
    names: Sequence[str], tensors: Tensors, differences: Callable, forms: dict[str, Callable]
) -> None:
    """Raise unless each form gives H·d as differences do, for one direction of two: a kink may lie in the way of one."""
    for what, form in forms.items():
        for seed in (0, 1):
            way = _way(tensors, seed)
            try:
                _expect(names, ask(form, way), differences(way), f"H·d by {what}")
                break
            except Failed:
                if seed:
                    raise


def _expect(names: Sequence[str] | dict, found: Tensors, due: Tensors, what: str) -> None:
    bound = ALLOWED * max(1e-3, *(t.abs().max().item() for t in due if t.numel()))
    for name, own, right in zip(names, found, due, strict=True):
        expect_same(own.detach(), right.detach(), f"{what}, {name}", bound)


def ask(form: Callable, *arguments: Any) -> Any:
    """What a derivative is; raises `Declined` where it is refused in so many words."""
    try:
        return form(*arguments)
    except (Refused, NotImplementedError) as error:
        raise Declined(_short(error)) from error
    except RuntimeError as error:
        if any(phrase in str(error) for phrase in REFUSALS):
            raise Declined(_short(error)) from error
        raise


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _loss(out: Tensor, upstream: Tensor) -> Tensor:
    """Not linear in the output, so that the upstream gradient has a derivative as well."""
    return (out * upstream).sum() + out.square().sum() / 2


def _upstream(inputs) -> Tensor:
    return _draw((*inputs.q.shape[:3], inputs.v.shape[3]), inputs.q, 5)


def _way(tensors: Tensors, seed: int) -> tuple[Tensor, ...]:
    return tuple(_draw(t.shape, t, 11 + 100 * seed + n) for n, t in enumerate(tensors))


def _draw(shape: Sequence[int], like: Tensor, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(like)


def dot(a: Tensors, b: Tensors) -> Tensor:
    return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()


def _filled(gradients: Sequence[Tensor | None], tensors: Tensors) -> list[Tensor]:
    return [torch.zeros_like(t) if g is None else g for g, t in zip(gradients, tensors, strict=True)]
