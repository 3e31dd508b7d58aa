"""The gradients of a whole model against differences of its forward pass, behind `check_model`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from attnzoo.checks.compare import Failed, Skip, expect_same
from attnzoo.checks.model_properties import PROMPT, Model
from attnzoo.checks.second_order import ask, dot

STEP = 3e-4
LARGEST = 2e8
"""Parameters beyond which a copy in float64 is too much to ask."""


def model_gradients(m: Model) -> str:
    """Each parameter's gradient is what differences of the logits say, in float64; recording one changes no logit."""
    wide, moved = in_float64(m)
    tokens = m.tokens(2, PROMPT)
    plain = wide(tokens)
    with torch.enable_grad():
        recorded = wide(tokens)
        if not recorded.requires_grad:
            raise Skip("the model runs under no_grad")
        weights = torch.randn(recorded.shape, generator=m.draw, dtype=torch.float64).to(m.device)
        gradients = torch.autograd.grad((recorded * weights).sum(), list(moved.values()), allow_unused=True)
    expect_same(recorded.detach(), plain, "logits", wide.bound(plain), "recording gradients against not")

    def outcome() -> float:
        return float((wide(tokens) * weights).sum())

    found = {
        name: _along(p, torch.zeros_like(p) if g is None else g, outcome, m.draw)
        for (name, p), g in zip(moved.items(), gradients, strict=True)
    }
    _judge(found)
    return f"{len(found)} parameters, {PROMPT} tokens in float64"


def model_second_derivative(m: Model) -> str:
    """v·H·v by two backward passes is, for each parameter's part, what differences of the gradients say, or it is refused."""
    wide, moved = in_float64(m)
    tokens, parameters = m.tokens(2, PROMPT), list(moved.values())

    def gradients(keep: bool = False) -> list[Tensor]:
        with torch.enable_grad():
            logits = wide(tokens)
            if not logits.requires_grad:
                raise Skip("the model runs under no_grad")
            found = torch.autograd.grad(  # no constant second derivative, and not linear in the logits
                logits.logsumexp(-1).sum() - logits[..., 0].sum(), parameters, create_graph=keep, allow_unused=True
            )
        return [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]

    for again in (True, False):
        way = [_way(p, m.draw) for p in parameters]
        with torch.enable_grad():
            curved = ask(lambda: torch.autograd.grad(dot(gradients(keep=True), way), parameters, allow_unused=True))  # noqa: B023
        at = moving(parameters, way, lambda: [float((g * d).sum()) for g, d in zip(gradients(), way, strict=True)])  # noqa: B023
        found = {}
        for n, (name, p) in enumerate(moved.items()):
            second = torch.zeros_like(p) if curved[n] is None else curved[n]
            found[name] = _compared(second, way[n], {step: values[n] for step, values in at.items()})
        try:
            _judge(found, "second derivative in")
            break
        except Failed:
            if (
                not again
            ):  # gradients have kinks where elu or relu change sides: one may lie in the way of one direction
                raise
    return f"{len(found)} parameters at once, {PROMPT} tokens in float64"


def in_float64(m: Model) -> tuple[Model, dict[str, nn.Parameter]]:
    """A copy of the model in float64, and what of it may be moved, by name."""
    if not isinstance(m.fn, nn.Module):
        raise Skip("a function shows no parameters that could be moved: pass the module itself")
    if sum(p.numel() for p in m.fn.parameters()) > LARGEST:
        raise Skip(f"more than {LARGEST:.0e} parameters: their copy in float64 is left out")
    module = copy.deepcopy(m.fn).double()
    moved = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not moved:
        raise Skip("no parameter requires a gradient")
    return replace(m, fn=module), moved


def _along(p: Tensor, gradient: Tensor, outcome: Callable[[], float], draw: torch.Generator) -> tuple[float, ...]:
    """In one random direction as long as the parameter: the derivative by the gradient, by differences, how large such a
    derivative is by chance, and what the differences are unsure of."""
    way = _way(p, draw)
    return _compared(gradient, way, moving([p], [way], outcome))


def _way(p: Tensor, draw: torch.Generator) -> Tensor:
    """A random direction as long as the parameter."""
    way = torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p.device)
    return way * (max(float(p.norm()), 1e-3) / float(way.norm()))


@torch.no_grad()
def moving(parameters: Sequence[Tensor], way: Sequence[Tensor], outcome: Callable[[], Any]) -> dict[int, Any]:
    """The outcome with the parameters moved by -2 … 2 steps along the way; afterwards they are where they were."""
    held, at = [p.clone() for p in parameters], {}
    try:
        for n in (-2, -1, 0, 1, 2):
            for p, start, d in zip(parameters, held, way, strict=True):
                p.copy_(start + n * STEP * d)
            at[n] = outcome()
    finally:
        for p, start in zip(parameters, held, strict=True):
            p.copy_(start)
    return at


def _compared(gradient: Tensor, way: Tensor, at: dict[int, float]) -> tuple[float, ...]:
    """The derivative along the way by the gradient and by differences, and what `_judge` allows by."""
    by_difference = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * STEP)  # exact to the fourth order
    fourth = at[2] - 4 * at[1] + 6 * at[0] - 4 * at[-1] + at[-2]  # 0 but for that order, rounding and kinks
    by_chance = float(gradient.norm() * way.norm()) / way.numel() ** 0.5
    return float((gradient * way).sum()), by_difference, by_chance, abs(fourth) / STEP


def _judge(found: dict[str, tuple[float, ...]], what: str = "gradient of") -> None:
    """Raise for the parameter that is furthest off, if any is.

    Allowed are a millionth of the derivative, and ten times what the fourth difference, which is of the order of the
    error, says of this parameter or of the middle one: a model that computes parts in float32 is rough everywhere.
    """
    rough = median(unsure for *_, unsure in found.values())
    worst, name = max(
        (abs(own - differ) / (1e-6 * max(by_chance, abs(differ)) + 10 * max(rough, unsure) + 1e-12), name)
        for name, (own, differ, by_chance, unsure) in found.items()
    )
    if not worst <= 1:
        own, differ, *_ = found[name]
        raise Failed(f"{differ:.8g}", f"{own:.8g}", f"{what} {name}", "derivative along a random direction, float64")
