"""Where a NaN or an infinity first appears."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from attnzoo.measure.arithmetic import autocast
from attnzoo.training.evaluate import summed_loss
from attnzoo.training.stream import Window


def first_nonfinite(model: nn.Module, window: Window, precision: str = "fp32") -> str | None:
    """Repeat one step without updating and name the first culprit in the order of computation; None when all is finite.

    The order: parameters, outputs of layers, the loss, gradients of layers' outputs, gradients of parameters. The
    model's gradients are cleared.
    """
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return f"parameter {name}"
    model.zero_grad()
    found: list[str] = []
    with _watch(model, found):
        for batch in window.batches:
            with autocast(precision, batch.tokens.device):
                loss = summed_loss(model.forward, batch)[0] / window.n_scored  # forward: never the compiled call
            if not found and not loss.isfinite():
                found.append("the loss")
            if not found:
                loss.backward()
            if not found:
                found += [
                    f"gradient of {n}"
                    for n, p in model.named_parameters()
                    if p.grad is not None and not p.grad.isfinite().all()
                ]
            if found:
                break
    model.zero_grad()
    return found[0] if found else None


@contextmanager
def _watch(model: nn.Module, found: list[str]) -> Iterator[None]:
    """While open, each module's output, and later its gradient, is looked at; inner modules come before outer ones."""

    def hook_for(name: str, kind: str):
        def on_output(module: nn.Module, inputs: tuple, output: object) -> None:
            if not isinstance(output, Tensor) or not output.is_floating_point():
                return
            if not output.isfinite().all():
                found.append(f"output of {name} ({kind})")
            elif output.requires_grad:
                output.register_hook(on_gradient)

        def on_gradient(gradient: Tensor) -> None:
            if not gradient.isfinite().all():
                found.append(f"gradient of the output of {name} ({kind})")

        return on_output

    handles = [m.register_forward_hook(hook_for(n, type(m).__name__)) for n, m in model.named_modules() if n]
    try:
        with torch.enable_grad():
            yield
    finally:
        for handle in handles:
            handle.remove()
