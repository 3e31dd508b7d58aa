"""Small language models for the leak tests: correct ones, and ones with a planted leak each."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from attnzoo import CausalLM
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig

V, T, C, H = 19, 24, 32, 2
LATE = T // 2 - 1  # the row of the leaks that concern one row


class TinyLM(nn.Module):
    """A GPT as it stands in many a repository; ``mix`` (q, k, v) -> out is its attention, causal unless replaced."""

    def __init__(self, mix=None, front=None, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions = nn.Embedding(V, C), nn.Embedding(160, C)
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.norm, self.mlp = nn.LayerNorm(C), nn.Sequential(nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C))
        self.head, self.dropout = nn.Linear(C, V), nn.Dropout(dropout)
        self.mix, self.front = mix or causal, front

    def forward(self, tokens):
        h = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        if self.front is not None:
            h = self.front(self, tokens, h)
        q, k, v = (t.unflatten(-1, (H, -1)).transpose(1, 2) for t in self.qkv(self.norm(h)).chunk(3, -1))
        h = h + self.dropout(self.out(self.mix(q, k, v).transpose(1, 2).flatten(2)))
        return self.head(h + self.mlp(h))


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def seeing(visible):
    """Attention over ``visible(i, j, T)``."""

    def mix(q, k, v):
        n = q.shape[2]
        i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible(i, j, n) & (i >= 0) & (j >= 0))

    return mix


def future_normaliser(q, k, v):
    weights = (q @ k.mT).exp()
    return weights.tril() @ v / weights.sum(-1, keepdim=True)


def top_k_with_future(q, k, v):
    scores = q @ k.mT
    chosen = scores >= scores.topk(4, -1).values[..., -1:]  # the future competes for the places
    own = torch.eye(q.shape[2], dtype=torch.bool)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(chosen | own).tril())


def linear_chunks(q, k, v, c=8):
    """Linear attention whose carried state already holds the chunk that is being computed."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    parts, state = [], 0
    for start in range(0, q.shape[2], c):
        part = slice(start, start + c)
        state = state + k[:, :, part].mT @ v[:, :, part]
        parts.append((q[:, :, part] @ k[:, :, part].mT).tril() @ v[:, :, part] + q[:, :, part] @ state)
    return torch.cat(parts, 2)


def unfinished_block(model, tokens, h, c=4):
    """Adds to each token the mean of its own block, the part that is still to come included."""
    pad = -h.shape[1] % c
    means = F.pad(h, (0, 0, 0, pad)).unflatten(1, (-1, c)).mean(2)
    return h + means.repeat_interleave(c, 1)[:, : h.shape[1]]


def shorter_is_bidirectional(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 16)


def longer_is_bidirectional(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] <= 16)


def expert_choice(model, tokens, h):
    """Each of two experts takes the T/2 tokens that like it best, over the whole sequence."""
    liking = h @ model.head.weight[0]
    taken = liking >= liking.median(1, keepdim=True).values
    return torch.where(taken[..., None], h * 2, h)


FRONTS = {
    "label_in_the_input": lambda m, tokens, h: h + 0.1 * m.tokens(tokens.roll(-1, 1)),
    "statistics_over_time": lambda m, tokens, h: (
        (h - h.mean(1, keepdim=True)) / h.std(1, correction=0, keepdim=True).clamp(min=1e-3)
    ),
    "count_of_a_token": lambda m, tokens, h: h + (tokens == 3).float().mean(1)[:, None, None],
    "convolution_padded_on_both_sides": lambda m, tokens, h: h + F.avg_pool1d(h.mT, 3, 1, 1).mT,
    "gate_one_step_ahead": lambda m, tokens, h: h * h.roll(-1, 1).sigmoid(),
    "a_millionth_of_the_next_token": lambda m, tokens, h: h + 1e-6 * h.roll(-1, 1),
    "block_before_it_is_finished": unfinished_block,
    "expert_choice": expert_choice,
}
MIXES = {
    "bidirectional": seeing(lambda i, j, n: j >= 0),
    "reversed_mask": seeing(lambda i, j, n: j >= i),
    "one_key_too_far": seeing(lambda i, j, n: j <= i + 1),
    "one_future_key_in_one_row": seeing(lambda i, j, n: (j <= i) | ((i == LATE) & (j == LATE + 1))),
    "far_future_key_in_one_row": seeing(lambda i, j, n: (j <= i) | ((i == 5) & (j == n - 1))),
    "block_mask_rounded_up": seeing(lambda i, j, n: j // 8 <= i // 8),
    "normaliser_over_the_future": future_normaliser,
    "top_k_chosen_with_the_future": top_k_with_future,
    "chunk_state_too_early": linear_chunks,
    "long_input_bidirectional": longer_is_bidirectional,
}
PLANTED = {name: TinyLM(front=front) for name, front in FRONTS.items()}
PLANTED |= {name: TinyLM(mix=mix) for name, mix in MIXES.items()}
WITHOUT_GRADIENT = {"count_of_a_token", "top_k_chosen_with_the_future", "expert_choice"}  # they act by a choice
SECOND_LOOKUP = {"label_in_the_input"}  # the probe follows the embedding of the tokens as they are


def found(report):
    return {t.name for t in report.failed}


def lm(name="sdpa", options=None, positions="rope", **sizes) -> CausalLM:
    sizes = {"n_layers": 2, "d_model": 32, "n_heads": 4} | sizes
    return assemble(ModelConfig(**sizes), AttentionConfig(name, options or {}), PositionsConfig(name=positions), V, 0)
