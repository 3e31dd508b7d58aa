"""torch's global generators seeded for a while, on the CPU and on the devices that are named.

`torch.manual_seed` seeds every CUDA device, also those that `torch.random.fork_rng` was not told to restore, and leaves its
seed behind for a CUDA that is not started yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int | None, *devices: torch.device | str) -> Iterator[None]:
    """Within it the global generators start from ``seed`` (None: from where they are); afterwards they are as before.

    Args:
        devices: what draws besides the CPU; no other device is touched.
    """
    cards = _cards(devices)
    with torch.random.fork_rng(cards, device_type="cuda"):
        if seed is not None:
            reseed(seed, *cards)
        yield


def reseed(seed: int, *devices: torch.device | str) -> None:
    """Seed the global generators of the CPU and of these devices, and of no other."""
    torch.default_generator.manual_seed(seed)
    for card in _cards(devices):
        with torch.cuda.device(card):
            torch.cuda.manual_seed(seed)


def _cards(devices: tuple[torch.device | str, ...]) -> list[torch.device]:
    """The CUDA devices among them, each once."""
    kinds = (torch.device(device) for device in devices)
    cards = {kind if kind.index is not None else torch.device("cuda", torch.cuda.current_device())
             for kind in kinds if kind.type == "cuda"}  # fmt: skip
    return sorted(cards, key=lambda card: card.index)
