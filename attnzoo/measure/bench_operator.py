"""The attention alone: forward, and forward with backward."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor

from attnzoo import registry
from attnzoo.contract import Attention
from attnzoo.errors import Refused
from attnzoo.kernels import sdpa
from attnzoo.masks import Mask
from attnzoo.measure.bench_row import Setting, Work
from attnzoo.measure.latency import Contestant
from attnzoo.measure.roofline import operator_work

LARGEST_DENSE = 16384  # tokens; an additive float32 mask then takes 1 GiB
COPIES_OF_SCORES = 6  # matrices of scores alive at once in a backward pass that writes them out, with their temporaries


def make(name: str, op: str, setting: Setting, n_tokens: int, compiled: bool = False) -> Work:
    """The backend's own call on random inputs.

    Raises:
        Refused: it has no such pass here, or its matrix of scores would not fit into memory.
    """
    attn = registry.build(
        name,
        n_heads=setting.n_heads,
        n_kv_heads=setting.n_kv_heads,
        head_dim=setting.head_dim,
        d_model=setting.n_heads * setting.head_dim,
        **setting.options.get(name, {}),
    ).to(setting.device)
    why = registry.why_not(
        name, device=setting.device, dtype=setting.dtype, n_heads=attn.n_heads, n_kv_heads=attn.n_kv_heads,
        head_dim=attn.head_dim, training=op != "forward", **setting.options.get(name, {}),
    )  # fmt: skip
    if why:
        raise Refused(f"{name} cannot run {op}", why)
    _fits(attn, setting, n_tokens)
    x = None
    if attn.capabilities.needs_x:
        x = _random(setting, (setting.batch_size, n_tokens, setting.n_heads * setting.head_dim), 9, op)
    if compiled:
        attend = torch.compile(attn, dynamic=False)
        return _work(attn, partial(_call, attend, x), op, setting, n_tokens, lambda: "compiled")
    return _work(attn, partial(_call, attn, x), op, setting, n_tokens, lambda: attn.kernel)


def dense_masks(names: Sequence[str], op: str, setting: Setting, n_tokens: int) -> dict[str, Work]:
    """SDPA given each sparse backend's pattern as a dense additive mask, made beforehand: what one would do without it."""
    works = {}
    for name in names:
        cls = registry.get(name)
        if cls.pattern is Attention.pattern or n_tokens > LARGEST_DENSE:
            continue
        attn = registry.build(
            name, n_heads=setting.n_heads, n_kv_heads=setting.n_kv_heads, head_dim=setting.head_dim,
            d_model=setting.n_heads * setting.head_dim, **setting.options.get(name, {}),
        )  # fmt: skip
        i = torch.arange(n_tokens, device=setting.device)
        own = attn.pattern(i[:, None], i[None, :])
        visible = Mask().dense(n_tokens, n_tokens, setting.device)
        visible = visible if own is None else visible & own
        scores = torch.zeros(visible.shape, dtype=setting.dtype, device=setting.device)
        scores.masked_fill_(~visible, float("-inf"))
        ran: list[str] = []

        def call(q: Tensor, k: Tensor, v: Tensor, scores=scores, attn=attn, ran=ran) -> Tensor:
            out, kernel = sdpa.call(q, k, v, scores, False, scale=attn.scale)
            ran[:] = [kernel]
            return out

        works[f"sdpa, {name}'s mask"] = _work(attn, call, op, setting, n_tokens, lambda ran=ran: ran[0])
    return works


def _call(attn: Callable[..., Tensor], x: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attn(q, k, v, Mask(), None, x)


def _work(attn: Attention, call: Callable[..., Tensor], op: str, setting: Setting, n_tokens: int, kernel) -> Work:
    shape = (setting.batch_size, attn.n_heads, n_tokens, setting.head_dim)
    narrow = (setting.batch_size, attn.n_kv_heads, n_tokens, setting.head_dim)
    q, k, v = (_random(setting, s, n, op) for n, s in enumerate((shape, narrow, narrow)))
    gradient = _random(setting, shape, 3, "forward")

    def forward() -> None:
        with torch.no_grad():
            call(q, k, v)

    def both() -> None:
        torch.autograd.grad(call(q, k, v), (q, k, v), gradient, allow_unused=True)  # a rule need not read all three

    run = forward if op == "forward" else both
    flops, n_bytes = operator_work(attn, op, setting.batch_size, n_tokens, setting.dtype)
    return Work(Contestant(run), attn.n_kv_heads, flops, n_bytes, kernel)


def _random(setting: Setting, shape: tuple[int, ...], stream: int, op: str) -> Tensor:
    return _drawn(shape, setting.seed + stream, setting.device, setting.dtype, op != "forward")


@lru_cache(maxsize=64)
def _drawn(shape: tuple[int, ...], seed: int, device: str, dtype: torch.dtype, gradient: bool) -> Tensor:
    """Normal values, drawn where they are needed and once for all contestants of a shape: at 65,536 tokens drawing took
    longer than every call that was to be timed. `forget_inputs` lets go of them."""
    draw = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=draw, device=device).to(dtype).requires_grad_(gradient)


def forget_inputs() -> None:
    """Free the inputs that the contestants of a benchmark share."""
    _drawn.cache_clear()


def _fits(attn: Attention, setting: Setting, n_tokens: int) -> None:
    """On a CPU a matrix of scores too large ends the process; refuse it before."""
    if attn.capabilities.memory < 2 or torch.device(setting.device).type == "cuda":
        return
    need = COPIES_OF_SCORES * setting.batch_size * attn.n_heads * n_tokens**2 * max(setting.dtype.itemsize, 4)
    free = _available_bytes()
    if free is not None and need > free:
        sizes = f"{need / 2**30:.0f} GiB of {free / 2**30:.0f} GiB that are free"
        raise Refused(f"{attn.name} does not fit", [f"its scores over {n_tokens} tokens need about {sizes}"])


def _available_bytes() -> int | None:
    """Memory that is free for use, where the system tells."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
