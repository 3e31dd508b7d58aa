"""How the C library hands out memory to tensors while they are timed or weighed."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def keep_freed_memory() -> bool:
    """Have glibc keep all that tensors leave for the next ones; whether it could.

    By default it returns tensors above 32 MiB, and what is free at the end of its heap beyond 64 MiB, to the system at
    once. An operator alone leaves nothing behind, so that from some length on every call faults its pages in anew; within
    a model, whose parameters and gradients stay, it does not (LOG.md, 2026-11-30).
    """
    return _set({M_MMAP_THRESHOLD: -1, M_TRIM_THRESHOLD: -1})  # as sizes, the largest there are


def return_freed_memory() -> bool:
    """Have glibc give every large tensor pages of its own, which go back to the system with it; whether it could.

    By default it raises that threshold as it goes, keeps in its heap what large tensors leave, and the process peaks above
    what it uses.
    """
    return _set({M_MMAP_THRESHOLD: 2**20})


def _set(thresholds: dict[int, int]) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and all(mallopt(which, size) for which, size in thresholds.items())
