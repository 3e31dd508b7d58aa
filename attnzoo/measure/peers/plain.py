"""The same language model and training loop written by hand for one experiment, in the manner of nanoGPT.

Source of the manner: github.com/karpathy/nanoGPT; of the parts: rope, RMSNorm, QK-norm and SwiGLU as in `attnzoo.model`.
Nothing of attnzoo is called but the sizes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.measure.latency import Contestant
from attnzoo.model.config import ModelConfig


class Block(nn.Module):
    """Pre-norm attention and SwiGLU, both projections fused."""

    def __init__(self, cfg: ModelConfig, hidden: int) -> None:
        super().__init__()
        self.n_heads, width, head_dim = cfg.n_heads, cfg.d_model, cfg.d_model // cfg.n_heads
        self.attention_norm, self.mlp_norm = (nn.RMSNorm(width, eps=cfg.norm_eps) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.q_norm, self.k_norm = (
            nn.RMSNorm(head_dim, eps=cfg.norm_eps) if cfg.qk_norm else nn.Identity() for _ in range(2)
        )
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, n_tokens, width = x.shape
        heads = (batch, n_tokens, self.n_heads, width // self.n_heads)
        q, k, v = (t.view(heads).transpose(1, 2) for t in self.qkv(self.attention_norm(x)).split(width, -1))
        q, k = turn(self.q_norm(q), cos, sin), turn(self.k_norm(k), cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(out.transpose(1, 2).reshape(batch, n_tokens, width))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class PlainLM(nn.Module):
    """Tokens (B, T) -> logits (B, T, V)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, cfg: ModelConfig, hidden: int, vocab_size: int, max_tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, cfg.d_model)
        self.blocks = nn.ModuleList(Block(cfg, hidden) for _ in range(cfg.n_layers))
        self.norm = nn.RMSNorm(cfg.d_model, eps=cfg.norm_eps)
        half = torch.arange(0, cfg.d_model // cfg.n_heads, 2).float()
        angle = torch.arange(max_tokens).float()[:, None] * 10000.0 ** -(half / (2 * len(half)))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x, n_tokens = self.embedding(tokens), tokens.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:n_tokens], self.sin[:n_tokens])
        return F.linear(self.norm(x), self.embedding.weight)


def turn(t: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, channel c with channel c + D/2."""
    a, b = t.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def training_loop(model: nn.Module, logits: Callable[[Tensor], Tensor], tokens: Tensor, targets: Tensor) -> Contestant:
    """One step of the usual loop: forward, cross entropy, backward, fused AdamW. The rate is 0: the weights stay."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    model.train()

    def step() -> None:
        out = logits(tokens)
        loss = F.cross_entropy(out.view(-1, out.shape[-1]), targets.view(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return Contestant(step)


def plain_copy(state: dict[str, Tensor], cfg: ModelConfig, max_tokens: int) -> PlainLM:
    """The model with the weights of a `CausalLM`'s ``state``."""
    weights = {
        name.replace(".projection.", ".")
        .replace(".attention.", ".")
        .replace(".projection.", ".")
        .replace(".mlp.", "."): value
        for name, value in state.items()
    }
    hidden = weights["blocks.0.down.weight"].shape[1]
    model = PlainLM(cfg, hidden, weights["embedding.weight"].shape[0], max_tokens)
    model.load_state_dict(weights)
    return model
