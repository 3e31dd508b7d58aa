"""local-attention, linear-attention-transformer and x-transformers, each set up to compute what ours computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.model.lm import CausalLM, hidden_width

Operator = Callable[[Tensor, Tensor, Tensor], Tensor]


def local_attention(window: int) -> Operator:
    """The last W keys with the query's own. The package's exact window of w reaches w keys *back*: w = W - 1."""
    from local_attention import LocalAttention

    return LocalAttention(
        window - 1, causal=True, look_backward=1, exact_windowsize=True, autopad=True, use_rotary_pos_emb=False
    )


def linear_attention() -> Operator:
    """Causal linear attention with φ = elu + 1, a token a bucket, the only setting that leaves no key out.

    The package takes softmax(q) and exp(k) as features; given log φ, they are φ but for a factor of each query that
    the normaliser cancels.
    """
    from linear_attention_transformer.linear_attention_transformer import causal_linear_attn

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return causal_linear_attn((F.elu(q) + 1).log(), (F.elu(k) + 1).log(), v, bucket_size=1)

    return call


def x_transformer_copy(ours: CausalLM, max_tokens: int) -> Any:
    """An x-transformers decoder with flash attention and the weights of ``ours``, which has rope and no QK-norm."""
    from x_transformers import Decoder, TransformerWrapper

    cfg = ours.cfg
    head_dim = cfg.d_model // cfg.n_heads
    decoder = Decoder(
        dim=cfg.d_model, depth=cfg.n_layers, heads=cfg.n_heads, attn_dim_head=head_dim, attn_flash=True,
        rotary_pos_emb=True, rotary_emb_dim=head_dim, use_rmsnorm=True, ff_glu=True, ff_swish=True, ff_no_bias=True,
        ff_mult=hidden_width(cfg) / cfg.d_model,
    )  # fmt: skip
    model = TransformerWrapper(
        num_tokens=ours.vocab_size, max_seq_len=max_tokens, attn_layers=decoder, use_abs_pos_emb=False,
        tie_embedding=True, tie_embedding_scale=1.0,
    )  # fmt: skip
    with torch.no_grad():
        model.token_emb.emb.weight.copy_(ours.embedding.weight)
        _set_norm(decoder.final_norm, ours.norm.weight)
        for number, block in enumerate(ours.layers):
            attention, mlp = decoder.layers[2 * number], decoder.layers[2 * number + 1]
            _set_norm(attention[0][0], block.attention_norm.weight)
            _set_norm(mlp[0][0], block.mlp_norm.weight)
            q, k, v = block.attention.projection.qkv.weight.split(block.attention.projection.sizes)
            attention[1].to_q.weight.copy_(_interleaved(q, head_dim))
            attention[1].to_k.weight.copy_(_interleaved(k, head_dim))
            attention[1].to_v.weight.copy_(v)
            attention[1].to_out.weight.copy_(block.attention.out.weight)
            gate, up = block.mlp.gate_up.weight.chunk(2)
            mlp[1].ff[0].proj.weight.copy_(torch.cat([up, gate]))
            mlp[1].ff[0].proj.bias.zero_()
            mlp[1].ff[-1].weight.copy_(block.mlp.down.weight)
    return model


def _set_norm(norm: Any, gain: Tensor) -> None:
    norm.g.copy_(gain - float(norm.unit_offset))


def _interleaved(weight: Tensor, head_dim: int) -> Tensor:
    """Rows so that rope pairs channels 2c and 2c + 1 where ours pairs c and c + D/2."""
    halves = weight.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).reshape(weight.shape)
