"""Races of the attention alone, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo import registry
from attnzoo.contract import Attention
from attnzoo.measure.latency import Contestant
from attnzoo.measure.peers import lucidrains
from attnzoo.measure.peers.race import Bar, Entry, Race, expect_same
from attnzoo.measure.peers.sizes import Sizes

Operator = Callable[[Tensor, Tensor, Tensor], Tensor]
FB = "forward + backward"
COMPARED = 512  # tokens; the same function at fewer tokens, before anything is timed


def window_races(sizes: Sizes, seed: int) -> Iterator[Race]:
    """sliding_window against local-attention with exactly W keys, and against SDPA with the window as a dense mask."""
    ours = _build("sliding_window", sizes, window=sizes.window)
    work = f"sliding_window W {sizes.window}, T {sizes.n_tokens}, {FB}"
    others = {
        "local-attention": (1.5, lambda: lucidrains.local_attention(sizes.window)),
        "SDPA, dense mask": (10.0, lambda: _dense_sdpa(ours)),
    }
    for name, (factor, make) in others.items():  # a pair at a time: the slow ones would leave few rounds to the others
        yield _race(
            work, sizes, seed, {"sliding_window": ours}, {name: make}, [Bar(work, "sliding_window", (name,), factor)]
        )


def linear_races(sizes: Sizes, seed: int) -> Iterator[Race]:
    """linear against causal SDPA, and against linear-attention-transformer with a token a bucket."""
    ours, full = _build("linear", sizes), _build("sdpa", sizes)
    work = f"linear, T {sizes.n_tokens}, {FB}"
    yield _race(work, sizes, seed, {"linear": ours, "sdpa": full}, {}, [Bar(work, "linear", ("sdpa",), 8.0)])
    exact = "linear-attention-transformer, bucket 1"
    bars = [Bar(work, "linear", (exact,), 30.0)]
    yield _race(work, sizes, seed, {"linear": ours}, {exact: lucidrains.linear_attention}, bars)


def block_sparse_races(sizes: Sizes, seed: int) -> Iterator[Race]:
    """block_sparse that reads 1/8 of the causal blocks, and causal SDPA, which reads them all."""
    reads = sizes.n_tokens // (16 * sizes.block)  # T/16 keys a query, of the T/2 of a causal row
    ours = _build("block_sparse", sizes, block=sizes.block, window=max(reads - 2, 1), global_blocks=1, random_blocks=1)
    full = _build("sdpa", sizes)
    pairs = ours.flops(sizes.n_tokens, sizes.n_tokens) / full.flops(sizes.n_tokens, sizes.n_tokens)
    work = f"block_sparse, {_density(ours, sizes):.3f} of the causal blocks ({pairs:.3f} of the pairs), T {sizes.n_tokens}, {FB}"
    yield _race(
        work, sizes, seed, {"block_sparse": ours, "sdpa": full}, {}, [Bar(work, "block_sparse", ("sdpa",), 5.0)]
    )


def _density(attn: Attention, sizes: Sizes) -> float:
    """Blocks that are read, over those of the causal half with its diagonal."""
    first = torch.arange(0, sizes.n_tokens, sizes.block)  # the first token of each block stands for it
    read = attn.pattern(first[:, None], first[None, :])
    assert read is not None
    return 2 * int(read.sum()) / (len(first) * (len(first) + 1))


def _race(
    work: str,
    sizes: Sizes,
    seed: int,
    mine: dict[str, Attention],
    others: dict[str, Callable[[], Operator]],
    bars: list[Bar],
) -> Race:
    """Our backends first; every other one must give the same output and gradients as the first of ours."""
    first = next(iter(mine.values()))
    entries: dict[str, Callable[[], Entry]] = {
        name: partial(_entry, attn, sizes, seed, partial(getattr, attn, "kernel")) for name, attn in mine.items()
    }

    def peer(make: Callable[[], Operator]) -> Entry:
        call = make()
        _expect_same_operator(call, first, sizes, seed)
        return _entry(call, sizes, seed, lambda: None)

    entries |= {name: partial(peer, make) for name, make in others.items()}
    shape = {
        "T": sizes.n_tokens, "B": 1, "H": sizes.n_heads, "G": sizes.n_heads, "D": sizes.head_dim, "dtype": "float32"
    }  # fmt: skip
    return Race(work, shape, tuple(mine), entries, bars)


def _entry(call: Operator, sizes: Sizes, seed: int, kernel: Callable[[], str | None]) -> Entry:
    q, k, v, gradient = _inputs(sizes, sizes.n_tokens, seed)

    def run() -> None:
        torch.autograd.grad(call(q, k, v), (q, k, v), gradient)

    return Entry(Contestant(run), kernel)


def _expect_same_operator(theirs: Operator, ours: Operator, sizes: Sizes, seed: int) -> None:
    q, k, v, gradient = _inputs(sizes, min(sizes.n_tokens, COMPARED), seed)
    found = []
    for call in (theirs, ours):
        out = call(q, k, v)
        found.append([out, *torch.autograd.grad(out, (q, k, v), gradient)])
    for what, peer, own in zip(("the output", "dq", "dk", "dv"), *found, strict=True):
        expect_same(peer, own, what)


def _dense_sdpa(attn: Attention) -> Operator:
    """SDPA by hand with the backend's pattern as an additive mask, made once for each length."""
    masks: dict[int, Tensor] = {}

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n_tokens = q.shape[2]
        if n_tokens not in masks:
            i = torch.arange(n_tokens)
            own = attn.pattern(i[:, None], i[None, :])
            assert own is not None
            visible = (i[None, :] <= i[:, None]) & own
            masks[n_tokens] = torch.zeros(n_tokens, n_tokens).masked_fill_(~visible, float("-inf"))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=masks[n_tokens])

    return call


def _build(name: str, sizes: Sizes, **options: int) -> Attention:
    return registry.build(name, n_heads=sizes.n_heads, head_dim=sizes.head_dim, **options)


def _inputs(sizes: Sizes, n_tokens: int, seed: int) -> list[Tensor]:
    """q, k, v, which want gradients, and the gradient of the output, (1, H, T, D) each."""
    draw = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(1, sizes.n_heads, n_tokens, sizes.head_dim, generator=draw) for _ in range(4)]
    return [t.requires_grad_(number < 3) for number, t in enumerate(drawn)]
