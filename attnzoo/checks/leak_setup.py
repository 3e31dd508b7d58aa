"""The state a callable is tested in, and what can be known about it: the modules behind it, and its rounding."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnzoo.seeds import seeded


def modules_behind(fn: Any) -> list[nn.Module]:
    """The modules a callable shows: itself, the owner of a method, what a partial, a lambda or an object holds."""
    if isinstance(fn, nn.Module):
        return [fn]
    if isinstance(fn, functools.partial):
        held: list[Any] = [*modules_behind(fn.func), *fn.args, *fn.keywords.values()]
    elif inspect.ismethod(fn):
        held = [fn.__self__, *getattr(fn.__self__, "__dict__", {}).values()]
    elif inspect.isfunction(fn):
        held = [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]
        held += [fn.__globals__.get(name) for name in fn.__code__.co_names]
        for cell in fn.__closure__ or ():
            try:
                held.append(cell.cell_contents)
            except ValueError:  # a name that has not been assigned yet
                continue
    else:
        held = list(getattr(fn, "__dict__", {}).values())
    found = {id(m): m for m in held if isinstance(m, nn.Module)}
    return list(found.values())


def devices_of(modules: list[nn.Module]) -> set[torch.device]:
    """Where the modules hold their weights."""
    return {p.device for m in modules for p in m.parameters()}


@contextmanager
def prepared(
    modules: list[nn.Module], device: torch.device, seed: int, asleep: tuple[float, ...] = (0.0,)
) -> Iterator[int]:
    """Evaluation mode, no gradients, a fixed random state, weights that are ``asleep`` woken; all as before afterwards.

    Yields the number of woken weights.
    """
    parts = {id(m): m for top in modules for m in top.modules()}.values()
    was_training = [(m, m.training) for m in parts]
    with seeded(seed, device, *devices_of(modules)), torch.no_grad():
        for top in modules:
            top.eval()
        woken = _wake(modules, seed, asleep)
        try:
            yield sum(held.numel() for _, _, held in woken)
        finally:
            for parameter, there, held in woken:
                parameter[there] = held
            for module, mode in was_training:
                module.training = mode


def _wake(modules: list[nn.Module], seed: int, asleep: tuple[float, ...]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Put noise into the weights that are exactly one of ``asleep``; which ones they were, and what they held."""
    draw = torch.Generator().manual_seed(seed)
    woken: list[tuple[Tensor, Tensor, Tensor]] = []
    for parameter in {id(p): p for m in modules for p in m.parameters()}.values():
        if not parameter.requires_grad or not parameter.is_floating_point():
            continue  # a frozen tensor of zeros and ones may be a mask
        there = torch.isin(parameter, torch.tensor(asleep).to(parameter))
        if there.any():
            held = parameter[there].clone()
            woken.append((parameter, there, held))
            noise = torch.randn(len(held), generator=draw) * 0.1
            parameter[there] = held + noise.to(parameter)
    return woken


def rounding(dtype: torch.dtype, modules: list[nn.Module], device: torch.device) -> tuple[float, torch.dtype]:
    """What rounding may change where two correct computations sum in different orders, relative to the largest logit.

    64 units of float32 or float64, whose sums over the width round at every step; 8 of a half type, whose sums are kept
    in float32 and which rounds only what it stores. The unit is that of the coarsest type in sight, returned with it.
    """
    kinds = [
        dtype,
        *(p.dtype for m in modules for p in m.parameters() if p.is_floating_point() and p.dtype.itemsize > 1),
    ]
    if torch.is_autocast_enabled(device.type):
        kinds.append(torch.get_autocast_dtype(device.type))
    coarsest = max(kinds, key=lambda kind: torch.finfo(kind).eps)
    if coarsest == torch.float32 and device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        return 8 * 2.0**-10, coarsest
    return (8 if coarsest.itemsize == 2 else 64) * torch.finfo(coarsest).eps, coarsest
