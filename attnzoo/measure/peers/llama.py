"""Hugging Face Llama of the same shape and weights: training, and generation with its caches (package transformers)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnzoo.measure.latency import Contestant
from attnzoo.measure.peers.race import Differs
from attnzoo.model.lm import CausalLM, hidden_width

CACHES = ("dynamic", "static")


def llama_copy(ours: CausalLM, max_tokens: int) -> Any:
    """A ``LlamaForCausalLM`` with SDPA, tied embeddings and the weights of ``ours``, which has rope and no QK-norm."""
    from transformers import LlamaConfig, LlamaForCausalLM

    cfg = ours.cfg
    settings: dict[str, Any] = {
        "vocab_size": ours.vocab_size, "hidden_size": cfg.d_model, "intermediate_size": hidden_width(cfg),
        "num_hidden_layers": cfg.n_layers, "num_attention_heads": cfg.n_heads,
        "num_key_value_heads": ours.attention_modules()[0].n_kv_heads, "max_position_embeddings": max_tokens,
        "rms_norm_eps": cfg.norm_eps, "tie_word_embeddings": True, "attn_implementation": "sdpa",
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(**settings))
    weights = {"model.embed_tokens.weight": ours.embedding.weight, "model.norm.weight": ours.norm.weight}
    for number, block in enumerate(ours.layers):
        here, layer = f"model.layers.{number}", block.attention
        q, k, v = layer.projection.qkv.weight.split(layer.projection.sizes)
        gate, up = block.mlp.gate_up.weight.chunk(2)
        weights |= {
            f"{here}.self_attn.q_proj.weight": q, f"{here}.self_attn.k_proj.weight": k,
            f"{here}.self_attn.v_proj.weight": v, f"{here}.self_attn.o_proj.weight": layer.out.weight,
            f"{here}.mlp.gate_proj.weight": gate, f"{here}.mlp.up_proj.weight": up,
            f"{here}.mlp.down_proj.weight": block.mlp.down.weight,
            f"{here}.input_layernorm.weight": block.attention_norm.weight,
            f"{here}.post_attention_layernorm.weight": block.mlp_norm.weight,
        }  # fmt: skip
    model.load_state_dict({**weights, "lm_head.weight": ours.embedding.weight})
    return model


def generation(
    model: Any, kind: str, filled: list[tuple[Tensor, Tensor]], tokens: Tensor, new: int, expected: Tensor
) -> Contestant:
    """Greedy ``generate`` of ``new`` tokens, by itself, after all but the last of ``tokens`` in its cache.

    Args:
        kind: of the cache, one of `CACHES`.
        filled: keys and values (B, G, T - 1, D) of each layer, which the cache starts with.
        expected: (B, T + new) what it must give.

    Raises:
        Differs: it gives other tokens.
    """
    from transformers import DynamicCache, StaticCache

    context = tokens.shape[1] - 1
    cache: Any
    if kind == "static":
        cache = StaticCache(config=model.config, max_cache_len=tokens.shape[1] + new)
    else:
        cache = DynamicCache(config=model.config)
    for number, (keys, values) in enumerate(filled):
        cache.update(keys, values, number)
    model.eval()

    def prepare() -> None:
        beyond = int(cache.get_seq_length()) - context
        if beyond:
            cache.crop(-beyond)

    @torch.no_grad()
    def run() -> Tensor:
        return model.generate(
            tokens, cache=cache, max_new_tokens=new, do_sample=False, attention_mask=torch.ones_like(tokens)
        )

    prepare()
    if not torch.equal(run(), expected):
        raise Differs("it computes something else", [f"generate with a {kind} cache gives other tokens than ours"])
    return Contestant(run, prepare, units=new)
