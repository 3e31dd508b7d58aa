"""Hierarchical attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.contract import Attention, Capabilities, Options, Request, ScoreBias, masked_softmax, softmax_flops
from attnzoo.errors import RequestError
from attnzoo.kernels.constants import constant
from attnzoo.kernels.gates import wide
from attnzoo.kernels.pyramid import Nodes, PyramidCache, attend_nodes, build, levels_of, reads
from attnzoo.kernels.summaries import FIELDS
from attnzoo.masks import Mask
from attnzoo.registry import register


@dataclass(frozen=True)
class HierarchicalOptions(Options):
    """block: c, an even number of tokens; a query sees its own block up to itself and the one before it token by token."""

    block: int = 32

    def __post_init__(self) -> None:
        if self.block < 2 or self.block % 2:
            raise RequestError(f"block={self.block}: an even number of at least 2 tokens, as nodes are joined in pairs")


@register("hierarchical")
class Hierarchical(Attention):
    """Softmax attention whose far keys are means over stretches that double with the distance.

    O_i = Σ_{j≤i} a_ij v_j, a_i = softmax_j(s q_i · k̄_ij), k̄_ij the mean key of the node that holds j as seen from i: j itself
    in the query's block of c tokens and in the one before; further back 2^l tokens, l growing with the distance, at most c
    nodes a level, none before the query's block is wholly behind it. All in one softmax, a node with the weight of the keys
    it stands for: where the keys of each node are equal, this is exact attention.
    Cost: time and memory O(T·c·log2(T/c)·D).
    State: the last two blocks of each of L = ⌈log2(T/c)⌉ levels, one at least: 4·c·L·G·D and 2·c·L numbers of tokens, in float32;
    a new token costs O(c·L·D). A prefill runs block after block.
    Gives up: which of the tokens of a far node it was.
    Departures: the paper pools queries too. Half-precision input is computed in float32. Nodes count from the first slot,
    also with left padding or documents, and hold the real keys of the document of their last token.
    Use: for long sequences whose far past matters in outline, and to decode them in little memory.
    """

    Options = HierarchicalOptions
    source = "arXiv:2107.11906"
    # T·log T, between lengths of thousands; and log T
    capabilities = Capabilities(
        masks=FIELDS, bias=False, time=1.2, memory=1.2, state=0.2, shift_invariant=False, products=True
    )
    options: HierarchicalOptions

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        if not request.contiguous_documents:
            yield "hierarchical pools neighbouring tokens: documents must be contiguous runs of one id"

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        scores, c = q @ k.mT * self.scale, self.options.block
        n_queries, n_keys = scores.shape[2:]
        j = torch.arange(n_keys, device=q.device)
        own = torch.arange(n_keys - n_queries, n_keys, device=q.device).div(c, rounding_mode="floor")[:, None]
        pooled, level = scores, 1
        while (n_keys - 1) // c >> level:
            node = j >> level
            member = (node[:, None] == torch.arange(int(node[-1]) + 1, device=q.device)).to(q.dtype)  # (Tk, nodes)
            mean = (scores * visible) @ member / (visible.to(q.dtype) @ member).clamp(min=1)
            finer = ((own >> (level - 1)) - 1) * c << (level - 1)
            pooled = torch.where((node // c == (own >> level) - 1) & (j < finer), mean[..., node], pooled)
            level += 1
        return masked_softmax(pooled, visible)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        extra = q.shape[2] - k.shape[2]
        if extra > 0:  # queries before the first key see nothing
            return F.pad(self.attend(q[:, :, extra:], k, v, mask, bias, x), (0, 0, extra, 0))
        c, n_keys = self.options.block, k.shape[2]
        first, end = (n_keys - q.shape[2]) // c, -(-n_keys // c)
        nodes, levels = build(k, v, c, mask)
        blocks, last = reads(torch.arange(first, end, device=q.device), c, levels)
        sizes = [end, *((end - 1) >> level for level in range(1, levels + 1))]  # blocks of each level
        begins = constant((0, 0, *(sum(sizes[:level]) for level in range(1, levels + 1))), q.device)
        where = (begins + blocks).masked_fill(blocks < 0, -1)
        return self._attend(q, nodes, where, last, first, n_keys, mask).to(v.dtype)

    def _attend(self, q, nodes, where: Tensor, last: Tensor, first: int, n_keys: int, mask: Mask) -> Tensor:
        out, kernel = attend_nodes(
            q, nodes, where, last, first, n_keys, mask, scale=self.scale, dropout=self.dropout_now
        )
        self.ran(kernel)
        return out

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None) -> PyramidCache:
        dtype = wide(dtype or torch.get_default_dtype())
        plain = super().new_cache(batch_size, self._slots(max_tokens), device, dtype, value_dim)
        held = torch.zeros(batch_size, plain.max_tokens, device=device, dtype=dtype)
        return PyramidCache(Nodes(plain.keys, plain.values, held), self.options.block, max_tokens)

    def cache_bytes(self, batch_size, max_tokens, dtype, value_dim=None) -> int:
        held = batch_size * self._slots(max_tokens) * wide(dtype).itemsize
        return super().cache_bytes(batch_size, self._slots(max_tokens), wide(dtype), value_dim) + held

    def _slots(self, max_tokens: int) -> int:
        return 2 * self.options.block * (1 + levels_of(max_tokens, self.options.block))

    def attend_cached(self, q, k, v, cache: PyramidCache, mask: Mask, bias, x) -> Tensor:
        c, outs, start = self.options.block, [], 0
        while start < q.shape[2]:  # block after block: a later one takes the place of what an earlier one reads
            first = cache.length // c
            rows = slice(start, start + c - cache.length % c)
            cache.append(k[:, :, rows], v[:, :, rows], mask)
            blocks, last = reads(torch.full((1,), first, device=q.device), c, cache.levels)
            outs.append(self._attend(q[:, :, rows], cache.nodes, cache.where(blocks), last, first, cache.length, mask))
            start = rows.stop
        return torch.cat(outs, 2).to(v.dtype)

    def flops(self, n_queries: int, n_keys: int) -> float:
        rows, c = torch.arange(n_keys - min(n_queries, n_keys), n_keys), self.options.block
        own = rows // c
        pairs = rows % c + 1 + c * (own > 0)
        for level in range(1, levels_of(n_keys, c) + 1):  # half a block where the finer level reaches into it
            pairs = pairs + torch.where(own >> level > 0, c // 2 * (1 + (own >> (level - 1)) % 2), 0)
        return softmax_flops(self, pairs.sum().item()) + 4.0 * self.n_kv_heads * self.head_dim * n_keys
