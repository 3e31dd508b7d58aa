"""Small tables that kernels read, sent to a device once: a copy from the host waits for the device each time."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """The numbers as a tensor (n,) on the device, int64 or float32, kept from call to call; it must not be changed."""
    if torch.compiler.is_compiling():  # a graph holds it as a constant of its own
        return torch.tensor(values, device=device)
    return _kept(values, device)


@lru_cache(maxsize=256)
def _kept(values: tuple[float, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # made during an evaluation, it must still serve training
        return torch.tensor(values).to(device)
