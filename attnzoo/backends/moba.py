"""Mixture of block attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnzoo.contract import Capabilities, Options, ScoreBias, masked_softmax, softmax_flops
from attnzoo.errors import RequestError
from attnzoo.kernels.chosen import attend_chosen
from attnzoo.kernels.summaries import FIELDS, Past, PastBlocksAttention, among_largest, choose, dense_blocks
from attnzoo.registry import register


@dataclass(frozen=True)
class MoBAOptions(Options):
    """block: c, tokens a block. topk: past blocks that a query reads besides its own."""

    block: int = 32
    topk: int = 3

    def __post_init__(self) -> None:
        faults = [] if self.block >= 1 else [f"block={self.block}: at least 1 token"]
        faults += [] if self.topk >= 0 else [f"topk={self.topk}: at least 0"]
        if faults:
            raise RequestError("moba cannot take these options", faults)


@register("moba")
class MoBA(PastBlocksAttention):
    """Softmax attention over the query's own block, causally, and the k past blocks whose mean key it agrees with most.

    O_i = softmax(s q_i K_Iᵀ) V_I, I = {j ≤ i: b(j) = b(i) or b(j) ∈ topk_b(s q_i · mean(K_b)), b < b(i)}, b(j) = j // c.
    Each query of each head chooses for itself, also where heads share keys; no gradient flows through the choice.
    Affinities are compared in float32, the earlier block first among equals. A mean takes in the real keys of the
    document of its block's last token.
    Cost: time O(T·(k + 1)·c·D) and T²/(2c)·D for the affinities, which have no backward and overtake at T ≈ 12·(k + 1)·c²;
    memory O(T·(k + 1)·D), of which O(T·D) is kept for the backward pass.
    State: 2·T·G·D, as any past block may be read again, and T/c·G·D mean keys in float64.
    Departures: the paper's k counts the own block, and its models leave the last layers to full attention
    (``model.attention_pattern``); a score bias moves the softmax and not the choice; blocks count from the
    first slot, also with left padding or documents.
    Use: for long sequences of which each token needs a few stretches in full, and which ones depends on the token.
    """

    Options = MoBAOptions
    source = "arXiv:2502.13189"
    capabilities = Capabilities(masks=FIELDS, memory=1.0, shift_invariant=False, products=True)
    options: MoBAOptions

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        scores = q @ k.mT * self.scale
        own, block, number = dense_blocks(scores, self.block)
        member = (block[:, None] == number).to(q.dtype)  # (Tk, N)
        count = visible.to(q.dtype) @ member
        mean = (scores * visible) @ member / count.clamp(min=1)  # the mean score, which is the score of the mean key
        read = among_largest(mean, (count > 0) & (number < own), self.options.topk) | (number == own)
        return masked_softmax(scores if bias is None else scores + bias, visible & read[..., block])

    def attend_past(self, q, k, v, summaries, past: Past, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        chosen = choose(
            q,
            summaries[0],
            past,
            self.options.topk,
            scale=self.scale,
            affinity=lambda scores, seen: scores.flatten(1, 2),
        )
        self.ran("moba/keys" if q.shape[2] == 1 else "moba/tiles")
        return attend_chosen(
            q, k, v, past.mask, bias, chosen, block_size=past.c, scale=self.scale, dropout=self.dropout_now
        )

    def flops(self, n_queries: int, n_keys: int) -> float:
        rows, c = torch.arange(n_keys - min(n_queries, n_keys), n_keys), self.block
        pairs = (rows % c + 1 + c * (rows // c).clamp(max=self.options.topk)).sum().item()
        return softmax_flops(self, pairs) + 2.0 * self.n_heads * self.head_dim * (rows // c).sum().item()
