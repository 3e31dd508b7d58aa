"""The part of some work that nobody can leave out, by the same kernels and with nothing around it.

No norm, activation, rotation, residual, loss, optimiser, choice of a token or module; inputs are random and used again, so
that they are nearer in the caches than a model's. A contestant like the others: the ratio that ours would reach if all the
rest took no time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.kernels import one_query, sdpa
from attnzoo.kernels.linear import linear
from attnzoo.measure.latency import Contestant
from attnzoo.measure.peers.race import Entry
from attnzoo.model.lm import CausalLM

Held = tuple[Tensor, Tensor]  # keys and values (B, G, T, D) of one layer


def train_products(ours: CausalLM, batch_size: int, n_tokens: int) -> Entry:
    """A training step's products with every weight, those of both gradients, and flash attention forward and backward, as
    autograd calls them."""
    matrices = weights(ours)
    wide = {n: torch.randn(batch_size, n_tokens, n) for weight in matrices for n in weight.shape}
    inputs = {n: t.clone().requires_grad_() for n, t in wide.items()}
    layout = ours.attention_modules()[0]
    q, k, v = (
        torch.randn(batch_size, n_tokens, n, layout.head_dim).transpose(1, 2).requires_grad_()
        for n in (layout.n_heads, layout.n_kv_heads, layout.n_kv_heads)
    )
    grouped, gradient = layout.n_heads != layout.n_kv_heads, torch.randn_like(q)

    def run() -> None:
        for weight in matrices:
            n_out, n_in = weight.shape
            torch.autograd.grad(linear(inputs[n_in], weight), (inputs[n_in], weight), wide[n_out])
        for _ in ours.layers:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=layout.scale, enable_gqa=grouped)
            torch.autograd.grad(out, (q, k, v), gradient)

    return Entry(Contestant(run))


def decode_products(matrices: Sequence[Tensor], held: Sequence[Held], n_heads: int, n_keys: int, new: int) -> Entry:
    """A token's products with the weights, and in every layer with its first ``n_keys`` keys and values, with the softmax
    between them; ``new`` times."""
    batch, _, _, head_dim = held[0][0].shape
    inputs = {weight.shape[1]: torch.randn(batch, 1, weight.shape[1]) for weight in matrices}
    q = torch.randn(batch, n_heads, 1, head_dim)
    layers = [(keys[:, :, :n_keys], values[:, :, :n_keys]) for keys, values in held]

    @torch.no_grad()
    def run() -> None:
        for _ in range(new):
            for weight in matrices:
                linear(inputs[weight.shape[1]], weight)
            for k, v in layers:
                _attend(q, k, v)

    return Entry(Contestant(run, units=new), lambda: _attend(q, *layers[0])[1])


def reading(matrices: Sequence[Tensor], held: Sequence[Held], new: int) -> Entry:
    """The weights, keys and values are read and added up, ``new`` times."""
    flat = [t.as_strided((t.numel(),), (1,)) for t in (*matrices, *(t for layer in held for t in layer))]

    @torch.no_grad()
    def run() -> None:
        for _ in range(new):
            for t in flat:
                t.sum()

    return Entry(Contestant(run, units=new))


def weights(ours: CausalLM) -> list[Tensor]:
    """Every matrix (N, C) that a token is multiplied with, the head's last."""
    return [m.weight for m in ours.blocks.modules() if isinstance(m, nn.Linear)] + [ours.head_weight]


def _attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, str]:
    """One query's attention and its kernel, as `attnzoo.kernels.sdpa` chooses it."""
    scale = q.shape[-1] ** -0.5
    if one_query.suits(q, k, v):
        return one_query.attend(q, k, v, None, scale), one_query.KERNEL
    return sdpa.call(q, k, v, None, False, scale=scale)
