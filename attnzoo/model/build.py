"""A model from its settings."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from attnzoo import registry
from attnzoo.contract import Attention
from attnzoo.errors import Refused, RequestError
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig, Recipe, attention_of_layers
from attnzoo.model.lm import CausalLM
from attnzoo.positions import build_positions

if TYPE_CHECKING:
    from attnzoo.training.config import RunConfig


def build_model(cfg: RunConfig, vocab_size: int | None = None) -> CausalLM:
    """The model a run trains, its initial values drawn from ``cfg.seed``; the global random state is left alone.

    Args:
        vocab_size: V; None takes it from the task and tokenizer.

    Raises:
        RequestError, Refused: sizes that do not fit, an unknown backend or option, positions the backend cannot take.
    """
    if vocab_size is None:
        by_text = cfg.data.bpe_vocab if cfg.data.tokenizer == "bpe" else 256
        vocab_size = cfg.task.n_symbols if cfg.task.name == "recall" else by_text
    return assemble(cfg.model, cfg.attention, cfg.positions, vocab_size, cfg.seed)


def assemble(
    model: ModelConfig, attention: AttentionConfig, positions: PositionsConfig, vocab_size: int, seed: int
) -> CausalLM:
    """`build_model` from the parts that matter to it."""
    head_dim = head_dim_of(model)
    scheme = build_positions(
        positions.name,
        d_model=model.d_model,
        n_heads=model.n_heads,
        head_dim=head_dim,
        base=positions.base,
        max_tokens=positions.max_tokens,
    )
    layers = attention_of_layers(model, attention)
    if scheme.needs_bias:
        unable = [name for name in dict.fromkeys(c.name for c in layers) if not registry.get(name).capabilities.bias]
        if unable:
            raise Refused(
                f"{' and '.join(unable)} cannot take {positions.name}: no scores to add a bias to; "
                "valid here: rope, learned, sinusoidal, none"
            )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        lm = CausalLM(
            model,
            vocab_size,
            lambda layer: _build_attention(layers[layer % len(layers)], model, head_dim),
            scheme,
        )
    lm.recipe = copy.deepcopy(Recipe(model, attention, positions, vocab_size, seed))
    return lm


def _build_attention(choice: AttentionConfig, model: ModelConfig, head_dim: int) -> Attention:
    return registry.build(
        choice.name,
        n_heads=model.n_heads,
        n_kv_heads=model.n_kv_heads,
        head_dim=head_dim,
        d_model=model.d_model,
        dropout=model.attention_dropout,
        scale=model.scale,
        **choice.options,
    )


def head_dim_of(model: ModelConfig) -> int:
    """D: as given, or C/H.

    Raises:
        RequestError: C is not a multiple of H.
    """
    if model.head_dim is not None:
        return model.head_dim
    if model.n_heads < 1 or model.d_model % model.n_heads:
        raise RequestError(f"d_model {model.d_model} is not a multiple of n_heads {model.n_heads}: set model.head_dim")
    return model.d_model // model.n_heads
