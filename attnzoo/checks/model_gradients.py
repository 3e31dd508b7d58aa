"""The gradients of a whole model against differences of its forward pass, behind `check_model`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor, nn

from attnzoo.checks.compare import Failed, Skip, expect_same
from attnzoo.checks.model_properties import PROMPT, Model

STEP = 3e-4
LARGEST = 2e8
"""Parameters beyond which a copy in float64 is too much to ask."""


def model_gradients(m: Model) -> str:
    """Each parameter's gradient is what differences of the logits say, in float64; recording one changes no logit."""
    module = m.fn
    if not isinstance(module, nn.Module):
        raise Skip("a function shows no parameters that could be moved: pass the module itself")
    if sum(p.numel() for p in module.parameters()) > LARGEST:
        raise Skip(f"more than {LARGEST:.0e} parameters: their copy in float64 is left out")
    module = copy.deepcopy(module).double()
    wide, moved = replace(m, fn=module), {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not moved:
        raise Skip("no parameter requires a gradient")
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


def _along(p: Tensor, gradient: Tensor, outcome: Callable[[], float], draw: torch.Generator) -> tuple[float, ...]:
    """In one random direction as long as the parameter: the derivative by the gradient, by differences, how large such a
    derivative is by chance, and what the differences are unsure of."""
    way = torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p.device)
    way *= max(float(p.norm()), 1e-3) / float(way.norm())
    held, at = p.clone(), {}
    try:
        for n in (-2, -1, 0, 1, 2):
            p.copy_(held + n * STEP * way)
            at[n] = outcome()
    finally:
        p.copy_(held)
    by_difference = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * STEP)  # exact to the fourth order
    fourth = at[2] - 4 * at[1] + 6 * at[0] - 4 * at[-1] + at[-2]  # 0 but for that order, rounding and kinks
    by_chance = float(gradient.norm() * way.norm()) / way.numel() ** 0.5
    return float((gradient * way).sum()), by_difference, by_chance, abs(fourth) / STEP


def _judge(found: dict[str, tuple[float, ...]]) -> None:
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
        raise Failed(
            f"{differ:.8g}", f"{own:.8g}", f"gradient of {name}", "derivative along a random direction, float64"
        )
