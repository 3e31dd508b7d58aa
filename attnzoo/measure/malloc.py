"""How the C library hands out memory while operators are timed."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def keep_freed_memory() -> bool:
    """Have glibc keep what tensors leave for the next ones, up to 2 GiB; whether it could.

    By default it returns tensors above 32 MiB, and what is free at the end of its heap beyond 64 MiB, to the system at
    once. An operator alone leaves nothing behind, so that from some length on every call faults its pages in anew; within
    a model, whose parameters and gradients stay, it does not (LOG.md, 2026-11-30).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and all([mallopt(M_MMAP_THRESHOLD, 2**30), mallopt(M_TRIM_THRESHOLD, 2**31 - 1)])
