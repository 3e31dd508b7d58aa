"""How near a measurement comes to what the machine can do: operations and bytes by formula, rates measured in the same
run.

The bound is max(operations / matrix-product rate, bytes / copy rate); the share is the bound over the measured time.
Bytes count each input and output once, which no kernel can go below; what stays in the caches from call to call, or is only
read, may beat the copy's rate.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from attnzoo.contract import Attention
from attnzoo.measure.latency import take_turns

COPIED = {False: 64 * 2**20, True: 2**30}
"""Bytes of the copy, of a CPU and of a GPU, whose second-level cache holds 50 MiB and more."""
RATES = ("matmul_flops_per_s", "copy_bytes_per_s")


def machine_rates(device: str, dtype: torch.dtype, seconds: float = 2.0) -> dict[str, float]:
    """{matmul_flops_per_s, copy_bytes_per_s}: `matmul_rate`, and a copy (read and write) beyond the caches."""
    source = torch.zeros(COPIED[torch.device(device).type == "cuda"], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    works, flops = _products(device, dtype)
    ms = _medians(works | {"copy": lambda: target.copy_(source)}, device, seconds)
    return {
        "matmul_flops_per_s": flops / min(ms[kind] for kind in works) * 1000,
        "copy_bytes_per_s": 2 * source.nbytes / ms["copy"] * 1000,
    }


def matmul_rate(device: str, dtype: torch.dtype, seconds: float) -> float:
    """Operations a second of a large square matrix product. In 16 bits the product in float32 counts where it is the faster
    one, as on CPUs that emulate the shorter type: a kernel may convert."""
    works, flops = _products(device, dtype)
    return flops / min(_medians(works, device, seconds).values()) * 1000


def _products(device: str, dtype: torch.dtype) -> tuple[dict[object, Callable[[], object]], float]:
    """One matrix product a type, and the operations of each."""
    size = 8192 if torch.device(device).type == "cuda" else 1024
    types = {dtype, torch.float32} if dtype.itemsize < 4 else {dtype}
    pairs = {kind: [torch.randn(size, size, device=device).to(kind) for _ in range(2)] for kind in types}
    return {kind: partial(torch.matmul, *pair) for kind, pair in pairs.items()}, 2 * size**3


def _medians(works: dict[object, Callable[[], object]], device: str, seconds: float) -> dict[object, float]:
    """Milliseconds of each, all in turns."""
    timings = take_turns(works, rounds=9, seconds=seconds, device=device)
    return {name: timing.interval.median for name, timing in timings.items() if timing.interval is not None}


def operator_work(attn: Attention, op: str, batch_size: int, n_tokens: int, dtype: torch.dtype) -> tuple[float, int]:
    """(operations, bytes) of one call: forward, or forward and backward at three times the operations.

    The backward pass reads q, k, v, the output and its gradient, and writes three gradients.
    """
    forward = batch_size * attn.flops(n_tokens, n_tokens)
    q = batch_size * attn.n_heads * n_tokens * attn.head_dim * dtype.itemsize  # as large as the output
    kv = 2 * batch_size * attn.n_kv_heads * n_tokens * attn.head_dim * dtype.itemsize
    if op == "forward":
        return forward, 2 * q + kv
    return 3 * forward, (2 * q + kv) + (4 * q + 2 * kv)


def reach(flops: float, n_bytes: float, median_ms: float | None, rates: dict[str, float]) -> dict[str, float | None]:
    """{bound_ms, share}: the fastest this machine could be, and how near the measurement came."""
    bound = 1000 * max(flops / rates["matmul_flops_per_s"], n_bytes / rates["copy_bytes_per_s"])
    return {"bound_ms": bound, "share": None if median_ms is None else bound / median_ms}
