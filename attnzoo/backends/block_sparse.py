"""Softmax attention over chosen blocks of keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.contract import Capabilities, Options, ScoreBias, softmax_flops
from attnzoo.errors import RequestError, unknown
from attnzoo.kernels import flex
from attnzoo.kernels.blocks import attend_blocks
from attnzoo.kernels.compiling import constant_result
from attnzoo.kernels.library import WithLibraries
from attnzoo.masks import Mask
from attnzoo.registry import register

LAYOUTS = ("bigbird", "strided", "fixed")


@dataclass(frozen=True)
class BlockSparseOptions(Options):
    """Which key blocks a query block reads; none lies ahead of it.

    Args:
        layout: bigbird (window + global + random blocks), strided (window + every stride-th block, counted back from the
            query's), or fixed (the query's own run of stride blocks + the last block of every earlier run).
        block: c, tokens a block.
        window: blocks read up to the query's own, itself included (bigbird, strided).
        global_blocks: first blocks, read by all (bigbird).
        random_blocks: further past blocks, drawn by ``seed`` and the block's number alone, so that training and decoding
            at any length read the same ones (bigbird).
        stride: see layout (strided, fixed).
        seed: of the random blocks.
    """

    layout: str = "bigbird"
    block: int = 32
    window: int = 2
    global_blocks: int = 1
    random_blocks: int = 1
    stride: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        faults = [] if self.layout in LAYOUTS else [unknown("layout", self.layout, LAYOUTS)]
        faults += [f"{n}={getattr(self, n)}: at least 1" for n in ("block", "window", "stride") if getattr(self, n) < 1]
        faults += [
            f"{n}={getattr(self, n)}: at least 0" for n in ("global_blocks", "random_blocks") if getattr(self, n) < 0
        ]
        if faults:
            raise RequestError("block_sparse cannot take these options", faults)


@register("block_sparse")
class BlockSparse(WithLibraries):
    """Softmax attention in which each block of c queries reads m blocks of keys: near, global, random or strided ones.

    A_i is the softmax of q_i·k_j / sqrt(D) over j ≤ i whose block j // c is one that block i // c reads; within it the mask
    decides token by token.
    Cost: time and memory O(T·m·c); m does not grow with T for
    bigbird, and grows as T/(c·stride) for strided and fixed. State: 2·T·G·D (any past block may be read again).
    Departures: BigBird's global queries are left out (under a causal mask the first blocks already see all of their past);
    every head reads the same blocks, counted from the first slot (left padding and packing shift them); strided and fixed
    work on blocks rather than tokens, both of their parts in every head (the paper also gives them to layers or heads in turn).
    Use: for long sequences in which far tokens matter and a fixed choice of them is enough.
    """

    Options = BlockSparseOptions
    source = "arXiv:2007.14062, arXiv:1904.10509"
    capabilities = Capabilities(time=1.0, memory=1.0, shift_invariant=False, products=True)
    kernels = ("auto", "blocks", "flex")
    options: BlockSparseOptions

    @classmethod
    def own(cls, options) -> Capabilities:
        grows = 1.0 if options.layout == "bigbird" else 2.0  # T/(c·stride) blocks a query
        return replace(cls.capabilities, time=grows, memory=grows)

    def pattern(self, i: Tensor, j: Tensor) -> Tensor:
        c = self.options.block
        return reads(self.options, i.div(c, rounding_mode="floor"), j.div(c, rounding_mode="floor"))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        extra = q.shape[2] - k.shape[2]
        if extra > 0:  # queries before the first key see nothing
            return F.pad(self.attend(q[:, :, extra:], k, v, mask, bias, x), (0, 0, extra, 0))
        c = self.options.block
        if self.options.kernel == "flex":
            # a table of blocks: inside a compiled mask the hash would be drawn for every pair, and in 32 bits
            n = torch.arange(-(-k.shape[2] // c), device=q.device)
            table = reads(self.options, n[:, None], n)
            seen = flex.Pattern((self.options, len(n)), lambda i, j: table[i.clamp(min=0) // c, j // c])
            return self.by_flex(q, k, v, mask, bias, pattern=seen)[0]
        out, kernel = attend_blocks(
            q, k, v, mask, bias, blocks=block_lists(self.options, -(-k.shape[2] // c), q.device), block_size=c,
            scale=self.scale, dropout=self.dropout_now,
        )  # fmt: skip
        self.ran(kernel)
        return out

    def flops(self, n_queries: int, n_keys: int) -> float:
        c = self.options.block
        blocks = block_lists(self.options, -(-n_keys // c), torch.device("cpu"))
        rows = torch.arange(n_keys - min(n_queries, n_keys), n_keys)
        read = blocks[rows // c]
        whole = ((read >= 0) & (read < (rows // c)[:, None])).sum().item() * c
        return softmax_flops(self, whole + (rows % c + 1).sum().item())


def reads(o: BlockSparseOptions, n: Tensor, b: Tensor) -> Tensor:
    """Whether query block n reads key block b; broadcasting."""
    past = b <= n
    if o.layout == "strided":
        return past & ((n - b < o.window) | ((n - b) % o.stride == 0))
    if o.layout == "fixed":
        return past & ((n // o.stride == b // o.stride) | (b % o.stride == o.stride - 1))
    seen = (n - b < o.window) | (b < o.global_blocks)
    for drawn in random_blocks(o, n):
        seen = seen | (b == drawn)
    return past & seen


def random_blocks(o: BlockSparseOptions, n: Tensor) -> list[Tensor]:
    """For query block n, one block out of each of r equal stretches between the global and the window blocks; -1 where a
    stretch is empty. A hash of (seed, n, stretch), so that no length and no device changes it."""
    between, drawn = (n - o.window + 1 - o.global_blocks).clamp(min=0), []
    for r in range(o.random_blocks):
        low, high = r * between // o.random_blocks, (r + 1) * between // o.random_blocks
        mixed = _hash(n + _hash(torch.full_like(n, o.seed * o.random_blocks + r)))
        drawn.append(torch.where(high > low, o.global_blocks + low + mixed % (high - low).clamp(min=1), -1))
    return drawn


@constant_result
def block_lists(o: BlockSparseOptions, n_blocks: int, device: torch.device) -> Tensor:
    """(N, m): the blocks each query block reads, -1 for none."""
    return _block_lists(o, n_blocks, device)


@lru_cache(maxsize=32)
def _block_lists(o: BlockSparseOptions, n_blocks: int, device: torch.device) -> Tensor:
    n = torch.arange(n_blocks, device=device)[:, None]
    if o.layout != "bigbird":
        read = reads(o, n, n.T)
        # the blocks read are the largest entries of the row once the others are -1
        return torch.where(read, n.T, -1).topk(int(read.sum(1).max()), dim=1).values
    near = n - torch.arange(min(o.window, n_blocks), device=device)  # before the first block: negative, reads nothing
    first = torch.arange(min(o.global_blocks, n_blocks), device=device).expand(n_blocks, -1)
    first = first.masked_fill(first > n - o.window, -1)  # those the window reads already
    return torch.cat([near, first, *random_blocks(o, n)], 1).clamp(min=-1)


def _hash(n: Tensor) -> Tensor:
    """A well-mixed non-negative int64 below 2^31 for each integer (two rounds of multiply and shift)."""
    for _ in range(2):
        n = (n ^ (n >> 15)) * 0x2C1B3C6D & 0x7FFFFFFF
        n = (n ^ (n >> 12)) * 0x297A2D39 & 0x7FFFFFFF
    return n ^ (n >> 15)
