"""What rounding does to a model's logits, measured against the same model in float64. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from attnzoo.contract import Attention
from attnzoo.masks import Mask

MULTIPLE = 4.0
"""Another order of summation changes an error by a factor, not by an order."""
DRAWS = 2


def explained(
    run: Callable[[Tensor], Tensor], modules: list[nn.Module], tokens: Tensor, computed: Tensor, eps: float, seed: int
) -> float:
    """How far two correct computations of these logits may lie apart, on top of what any model's rounding does.

    A rule may amplify rounding (a cube over a small sum, maps that nearly cancel), so it is measured: `MULTIPLE` times
    the larger of what the computed logits lie from their float64 values, and of what one rounding of every weight moves
    those. Never more than sqrt(eps) of the largest logit: an error of half the digits is no rounding. 0 where the model
    does not run in float64.

    Args:
        run: tokens -> logits, through ``modules``.
        computed: its logits (B, T, V) of ``tokens``.
        eps: the unit of its precision.
    """
    try:
        with _in_float64(modules):
            exact = run(tokens).double()
            lost = float((computed.double() - exact).abs().max())
            moved = max(float((_with_rounded_weights(run, modules, tokens, eps, seed + n) - exact).abs().max())
                        for n in range(DRAWS))  # fmt: skip
    except (RuntimeError, ValueError, TypeError):  # it has no float64: nothing is known beyond the usual bound
        return 0.0
    found = MULTIPLE * max(lost, moved)
    return min(found, eps**0.5 * float(exact.abs().max())) if found == found else 0.0


def _with_rounded_weights(run, modules, tokens: Tensor, eps: float, seed: int) -> Tensor:
    """The logits with every weight moved by about one unit of rounding, at random."""
    draw, held = torch.Generator().manual_seed(seed), []
    for p in _parameters(modules):
        held.append((p, p.data))
        noise = torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p.device)
        p.data = p.data * (1 + eps * noise)
    try:
        return run(tokens).double()
    finally:
        for p, data in held:
            p.data = data


@contextmanager
def _in_float64(modules: list[nn.Module]) -> Iterator[None]:
    """The modules in float64, without autocast; an attention that has no float64 computes its definition. All as before
    afterwards."""
    kept = [(p, p.data) for p in _parameters(modules)]
    parts = {id(m): m for top in modules for m in top.modules()}.values()
    buffers = [(m, name, b) for m in parts for name, b in m._buffers.items() if b is not None]
    plain = [m for m in parts if isinstance(m, Attention) and torch.float64 not in m.capabilities.dtypes]
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        try:
            for p, data in kept:
                p.data = data.double()
            for module, name, buffer in buffers:
                module._buffers[name] = buffer.double() if buffer.is_floating_point() else buffer.clone()
            for module in plain:
                module.__dict__["forward"] = _defined(module)
            yield
        finally:
            for module in plain:
                del module.__dict__["forward"]
            for module, name, buffer in buffers:
                module._buffers[name] = buffer
            for p, data in kept:
                p.data = data


def _defined(module: Attention) -> Callable[..., Tensor]:
    return lambda q, k, v, mask=Mask(), bias=None, x=None: module.reference(q, k, v, mask, bias, x)[0]


def _parameters(modules: list[nn.Module]) -> list[nn.Parameter]:
    found = {id(p): p for m in modules for p in m.parameters() if p.is_floating_point() and p.dtype.itemsize > 1}
    return list(found.values())
