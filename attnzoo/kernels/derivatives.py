"""Derivatives of operations that have a backward of their own.

Such an operation (`torch.autograd.Function`) trains in less time or memory than torch's own operations, but torch sees
through its backward only if that is written for it: a number kept from the forward counts as a constant in the second
derivative, which is then wrong without a word. So each operation here has a plain form beside it, made of torch's operations,
and takes it where more than a first gradient is asked for.
Source: torch's "Double backward with custom functions" and "Extending torch.func with autograd.Function".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attnzoo.errors import Refused


def plainly() -> bool:
    """Whether the plain form is wanted at once: torch.compile sees through it, and so does torch.func."""
    return torch.compiler.is_compiling() or transformed()


def transformed() -> bool:
    """Within a transform of torch.func (grad, vmap, jvp, …), or in forward-mode differentiation."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def recorded_gradients(
    plain: Callable[..., Tensor], inputs: Sequence[Tensor], upstream: Tensor, parameters: Sequence[Tensor] = ()
) -> tuple[Tensor | None, ...]:
    """What a backward returns while its own graph is kept (``create_graph``): the gradients of the plain form, themselves
    differentiable in the inputs, the parameters and ``upstream``; None for what wants none.

    Args:
        plain: the operation in torch's own operations, a function of ``inputs``.
        parameters: tensors that it reads besides.
    """
    aliases = [t.view_as(t) for t in inputs]  # one tensor given twice has two gradients
    wanted = [t for t in (*aliases, *parameters) if t.requires_grad]
    found = iter(torch.autograd.grad(plain(*aliases), wanted, upstream, create_graph=True, allow_unused=True))
    return tuple(next(found) if t.requires_grad else None for t in (*aliases, *parameters))


def first_order_only(kernel: str, *outs: Tensor | None) -> None:
    """Refuse a backward whose graph is kept through the outputs of a library's kernel, which has no second derivative.

    Left alone, such a kernel gives gradients without a graph, and a second derivative without its part. What torch.compile
    makes refuses by itself, and torch.func's transforms are refused by the libraries.
    """
    for out in outs:
        if out is not None and out.requires_grad and not plainly():
            out.register_hook(lambda _: _refuse_recording(kernel))


def _refuse_recording(kernel: str) -> None:
    if torch.is_grad_enabled():
        reason = "create_graph=True asks for one; take a kernel written in PyTorch"
        raise Refused(f"{kernel} has no second derivative", [reason])
