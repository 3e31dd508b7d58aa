"""Settings of the language model. No torch here: the command line reads this to answer ``--help``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class PositionsConfig:
    """name: none | learned | sinusoidal | rope | alibi; base: of the rope and sinusoidal wavelengths; max_tokens: rows of the
    learned table."""

    name: str = "rope"
    base: float = 10000.0
    max_tokens: int = 2048


@dataclass
class ModelConfig:
    """The decoder.

    Args:
        n_layers, d_model, n_heads: L, C, H.
        n_kv_heads: G; None leaves it to the backend (H for most, 1 for mqa, H/4 for gqa).
        head_dim: D; None is C/H.
        mlp_ratio: width of the SwiGLU hidden layer over C.
        qk_norm: RMSNorm over each head of q and k (arXiv:2010.04245).
        short_conv: width of a causal depthwise convolution on q, k and v, starting as the identity; 0 is none.
        dropout: on the embeddings and on what each sublayer adds.
        attention_dropout: on the attention weights.
        scale: what the scores are multiplied by; None is 1/sqrt(D).
        norm_eps: of every RMSNorm.
    """

    n_layers: int = 4
    d_model: int = 256
    n_heads: int = 8
    n_kv_heads: int | None = None
    head_dim: int | None = None
    mlp_ratio: float = 2.6875
    qk_norm: bool = True
    short_conv: int = 0
    dropout: float = 0.0
    attention_dropout: float = 0.0
    scale: float | None = None
    norm_eps: float = 1e-6


@dataclass
class AttentionConfig:
    """A backend by name with its own options (``kernel`` among them, where it has several)."""

    name: str
    options: dict[str, Any]
