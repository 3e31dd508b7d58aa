"""Native sparse attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnzoo.contract import Capabilities, Options, ScoreBias, masked_softmax, softmax_flops
from attnzoo.errors import RequestError
from attnzoo.kernels.chosen import attend_chosen
from attnzoo.kernels.gates import Gate, wide
from attnzoo.kernels.summaries import (
    FIELDS,
    Past,
    PastBlocksAttention,
    among_largest,
    attend_summaries,
    choose,
    dense_blocks,
    pool,
)
from attnzoo.kernels.window import attend_window
from attnzoo.registry import register


@dataclass(frozen=True)
class NSAOptions(Options):
    """The branches; one that is off has neither cost nor gate, and a single one no gate at all.

    Args:
        block: c, tokens a block, compressed and chosen alike.
        compressed: whether past blocks are read through their summaries.
        selected: n, past blocks that are read token by token besides the query's own; 0 for no such branch.
        window: W, keys of the window, the query's own included; 0 for no such branch.
    """

    others = ({"compressed": False}, {"selected": 0, "window": 0})
    block: int = 32
    compressed: bool = True
    selected: int = 4
    window: int = 64

    def __post_init__(self) -> None:
        faults = [] if self.block >= 1 else [f"block={self.block}: at least 1 token"]
        faults += [f"{n}={getattr(self, n)}: at least 0" for n in ("selected", "window") if getattr(self, n) < 0]
        if not self.branches:
            faults.append("every branch is off: set compressed=true, selected of at least 1, or window of at least 1")
        if faults:
            raise RequestError("nsa cannot take these options", faults)

    @property
    def branches(self) -> tuple[str, ...]:
        return tuple(name for name in ("compressed", "selected", "window") if getattr(self, name))


@register("nsa")
class NSA(PastBlocksAttention):
    """Three looks at the past, mixed by gates from x: block summaries, chosen blocks token by token, and a window.

    O_i = Σ_b σ(W_b x_i + β_b) O_b,i with a gate of each head for each branch b:
    compressed: softmax(s q_i K̃ᵀ) Ṽ over past blocks, K̃_b = Σ_l a_l k_(b,l), a = softmax of c learned numbers of each
    key/value head, and Ṽ likewise by others; both start as the mean;
    selected: softmax over the query's own block, causally, and the n past blocks of largest Σ_h softmax(s q_i^h K̃ᵀ), summed
    over the heads that share keys: they read the same blocks. No gradient flows through the choice;
    window: softmax over the last W keys.
    A summary takes in the real keys of the document of its block's last token, and is visible from the next block on.
    Cost: time O(T·((n + 1)·c + W)·D) and T²/(2c)·D for compression and affinities, memory O(T·(n + 1)·D).
    State: 2·T·G·D, as any past block may be read again, and 2·T/c·G·D summaries in float64; on mla, where every head has
    keys of its own, the latents and 2·T/c·H·(r + Dr) summaries of them, as each head compresses in its own way.
    Departures: blocks do not overlap and are chosen as they are compressed (the paper: stride 16, 32 compressed, 64 chosen);
    the compression is linear and knows no positions (an MLP with positions); gates are a linear map (an MLP); one k and v
    serve the three branches (three); a finished block's summary is visible from the next block on, where fla's kernel shows it
    to the block's own last token already; no first or last blocks are always chosen, the own one aside; blocks count from the
    first slot.
    Use: for long sequences that need the whole past in outline, a few stretches of it in full, and what is near.
    """

    Options = NSAOptions
    source = "arXiv:2502.11089"
    capabilities = Capabilities(
        masks=FIELDS, bias=False, needs_x=True, memory=1.0, shift_invariant=False, products=True
    )
    options: NSAOptions

    def __init__(self, **sizes) -> None:
        super().__init__(**sizes)
        branches = self.options.branches
        # heads that choose together and have one compression; it stays what it is where `with_layout` changes the keys
        self.groups = self.n_kv_heads
        self.gate = Gate(self.d_model, self.n_heads, len(branches)) if len(branches) > 1 else None
        self.logits = None
        if self.options.compressed:
            self.logits = nn.Parameter(torch.zeros(2, self.groups, self.block))

    @property
    def pooled(self) -> int:
        return 2 if self.options.compressed else 1 if self.options.selected else 0

    @property
    def summary_heads(self) -> int:
        return self.groups if self.options.compressed else self.n_kv_heads

    def summarise(self, k: Tensor, v: Tensor, members: Tensor | None) -> tuple[Tensor, ...]:
        logits = (None, None) if self.logits is None else self.logits
        return tuple(pool(t, self.block, members, l) for t, l in zip((k, v)[: self.pooled], logits, strict=False))

    def attend_past(self, q, k, v, summaries, past: Past, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        o, outs = self.options, []
        how: dict[str, Any] = {"scale": self.scale, "dropout": self.dropout_now}
        if o.compressed:
            outs.append(attend_summaries(q, summaries[0].to(k.dtype), summaries[1].to(v.dtype), past, **how))
        if o.selected:
            chosen = choose(q, summaries[0], past, o.selected, scale=self.scale, affinity=self._affinity)
            outs.append(attend_chosen(q, k, v, past.mask, None, self._repeat(chosen), block_size=past.c, **how))
        if o.window:
            outs.append(attend_window(q, k, v, past.mask, None, window=o.window, **how)[0])
        self.ran(f"nsa/{'+'.join(o.branches)}")
        return self._mixed(outs, x, wide(q.dtype)).to(v.dtype)

    def _affinity(self, scores: Tensor, seen: Tensor) -> Tensor:
        return self._summed(masked_softmax(scores, seen).flatten(1, 2))

    def _summed(self, read: Tensor) -> Tensor:
        """What each head would read of each summary (B, H, n, N) -> the sum over each group (B, groups, n, N)."""
        return read.unflatten(1, (self.groups, -1)).sum(2)

    def _repeat(self, t: Tensor) -> Tensor:
        """(B, groups, ...) -> (B, H, ...)."""
        return t.repeat_interleave(self.n_heads // self.groups, 1)

    def _mixed(self, parts: list[Tensor], x: Tensor | None, dtype: torch.dtype) -> Tensor:
        """What the branches give, by their gates computed in ``dtype``."""
        if self.gate is None:
            return parts[0]
        assert x is not None
        gates = self.gate(x).sigmoid().to(dtype).split(1, -1)  # (B, H, T, 1) each
        mixed = gates[0] * parts[0]
        for gate, part in zip(gates[1:], parts[1:], strict=True):
            mixed = mixed + gate * part
        return mixed

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        scores = q @ k.mT * self.scale
        own, block, number = dense_blocks(scores, self.block)
        of_keys, of_values = self._shares(visible, block, scores)
        member = (block[:, None] == number).to(q.dtype)  # (Tk, N)
        past = (number < own) & (visible.to(q.dtype) @ member > 0)
        blocks = masked_softmax((scores * of_keys) @ member, past)
        shared = self._repeat(self._summed(blocks))
        read = among_largest(shared, past, self.options.selected) | (number == own)
        j = torch.arange(len(block), device=q.device)
        i = torch.arange(len(block) - len(own), len(block), device=q.device)[:, None]
        maps = {
            "compressed": blocks[..., block] * of_values,
            "selected": masked_softmax(scores, visible & read[..., block]),
            "window": masked_softmax(scores, visible & (j > i - self.options.window)),
        }
        return self._mixed([maps[name] for name in self.options.branches], x, scores.dtype)

    def _shares(self, visible: Tensor, block: Tensor, scores: Tensor) -> Tensor:
        """(2, B, H, Tq, Tk): what each key and value makes up of its block's summary, as far as the query sees the block."""
        logits = scores.new_zeros(2, self.groups, self.block) if self.logits is None else self.logits.to(scores.dtype)
        place = torch.arange(len(block), device=block.device) % self.block
        parts = self._repeat(logits.exp())[:, None, :, None, place] * visible
        total = torch.zeros_like(parts[..., : int(block[-1]) + 1]).index_add(-1, block, parts)[..., block]
        return parts / total.masked_fill(total == 0, 1.0)

    def flops(self, n_queries: int, n_keys: int) -> float:
        o, rows = self.options, torch.arange(n_keys - min(n_queries, n_keys), n_keys)
        past, total = rows // self.block, 2.0 * self.pooled * self.summary_heads * self.head_dim * n_keys
        if o.compressed:
            total += softmax_flops(self, past.sum().item())
        if o.selected:
            total += softmax_flops(self, (rows % self.block + 1 + self.block * past.clamp(max=o.selected)).sum().item())
            total += softmax_flops(self, past.sum().item()) / 2
        if o.window:
            total += softmax_flops(self, (rows + 1).clamp(max=o.window).sum().item())
        return total + (0.0 if self.gate is None else 2.0 * n_queries * self.gate.up.weight.numel())
