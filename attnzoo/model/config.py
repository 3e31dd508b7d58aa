"""Settings of the language model. No torch here: the command line reads this to answer ``--help``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, ClassVar


@dataclass
class PositionsConfig:
    """name: auto (what each layer's backend is published with: none where its `Capabilities` say so, else rope) | none |
    learned | sinusoidal | rope | alibi | relative; base: of the rope and sinusoidal wavelengths; max_tokens:
    rows of the learned table; buckets: of relative, those of all distances from max_distance on in the last one."""

    name: str = "auto"
    base: float = 10000.0
    max_tokens: int = 2048
    buckets: int = 32
    max_distance: int = 128


@dataclass
class ModelConfig:
    """The decoder.

    Args:
        n_layers, d_model, n_heads: L, C, H.
        n_kv_heads: G; None leaves it to the backend (H for most, 1 for mqa, H/4 for gqa).
        head_dim: D; None is C/H.
        projection: qkv (every head of q, k and v from x) or mla (`attnzoo.model.projection`); None leaves it to the backend
            (qkv for all but mla).
        latent_dim, rope_dim: of mla: r, channels of the latent, None for 2·D; and Dr, those of each head's D that carry
            positions, None for D/2 (where that is odd, the next smaller even divisor).
        norm: of blocks and output: rms (arXiv:1910.07467) or layer (arXiv:1607.06450, without a bias).
        mlp: swiglu, geglu (both arXiv:2002.05202) or gelu, which has no gate.
        mlp_ratio: width of the MLP's hidden layer over C, rounded up to a multiple of 8.
        mlp_width: that width itself; None leaves it to mlp_ratio.
        match_parameters: a backend, or a number: the MLP width is chosen so that the model has as many parameters as the
            same model with that backend in every layer, or that many, up to half a step of the width.
        qk_norm: RMSNorm over each head of q and k (arXiv:2010.04245).
        short_conv: width of a causal depthwise convolution on q, k and v, starting as the identity; 0 is none.
        dropout: on the embeddings and on what each sublayer adds.
        attention_dropout: on the attention weights.
        scale: what the scores are multiplied by: a number, 1/D (arXiv:2203.03466), None for the backend's own (1/sqrt(D) for
            most; 1 for the delta rules, 1/sqrt(D/2) for differential), or log_n, which is log(n) times that for a query that
            sees n tokens under the causal mask (arXiv:2202.12172).
        output_gate: what attention returns times a sigmoid of a linear map of x (arXiv:2505.06708): none, headwise (a
            number a head) or elementwise (a number a channel).
        head_norm: RMSNorm over each head's output, before the gate.
        norm_eps: of every norm.
        tie_embeddings: the head's matrix is the embedding's; false gives it V·C weights of its own.
        attention_pattern: a backend for each layer, repeated over the layers; empty leaves it to ``attention``.
        attention_options: entry of the pattern -> its options. ``name`` among them is the backend, so that one may stand
            there twice with different options; without it the entry is a backend's name itself.
    """

    n_layers: int = 4
    d_model: int = 256
    n_heads: int = 8
    n_kv_heads: int | None = None
    head_dim: int | None = None
    projection: str | None = None
    latent_dim: int | None = None
    rope_dim: int | None = None
    norm: str = "rms"
    mlp: str = "swiglu"
    mlp_ratio: float = 2.6875
    mlp_width: int | None = None
    match_parameters: str | None = None
    qk_norm: bool = True
    short_conv: int = 0
    dropout: float = 0.0
    attention_dropout: float = 0.0
    scale: str | None = None
    output_gate: str = "none"
    head_norm: bool = False
    norm_eps: float = 1e-6
    tie_embeddings: bool = True
    attention_pattern: list[str] = field(default_factory=list)
    attention_options: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class AttentionConfig:
    """A backend by name with its own options (``kernel`` among them, where it has several)."""

    chosen: ClassVar[dict[str, str]] = {"name": "attention"}

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Recipe:
    """All that a model is built from. Its weights and this are the model again."""

    model: ModelConfig
    attention: AttentionConfig
    positions: PositionsConfig
    vocab_size: int
    seed: int = 0


def resized(model: ModelConfig, **sizes: Any) -> ModelConfig:
    """The model in other sizes, with a layer at least for each entry of its pattern; what was given in channels or
    parameters for its own sizes is left to the defaults."""
    absolute: dict[str, Any] = dict.fromkeys(("head_dim", "latent_dim", "rope_dim", "mlp_width"))
    if parameter_number(model.match_parameters) is not None:
        absolute["match_parameters"] = None
    sizes["n_layers"] = max(sizes["n_layers"], len(model.attention_pattern))
    return replace(model, **(absolute | sizes))


def parameter_number(match: str | None) -> float | None:
    """The number that ``match_parameters`` is; None where it is a backend, or nothing."""
    try:
        return None if match is None else float(match)
    except ValueError:
        return None


def score_scale(scale: str | None, head_dim: int) -> float | None:
    """The number that ``model.scale`` stands for, the part that depends on the query aside; None is the backend's own.

    Raises:
        ValueError: it stands for none.
    """
    if scale in (None, "log_n"):
        return None
    return 1 / head_dim if scale == "1/D" else float(scale)


def pattern_entries(model: ModelConfig) -> dict[str, AttentionConfig]:
    """The backend and options behind each different entry of the pattern."""
    found = {}
    for entry in dict.fromkeys(model.attention_pattern):
        options = dict(model.attention_options.get(entry, {}))
        found[entry] = AttentionConfig(str(options.pop("name", entry)), options)
    return found


def attention_of_layers(model: ModelConfig, attention: AttentionConfig) -> list[AttentionConfig]:
    """The pattern, resolved: layer n has entry n mod its length. One entry where all layers have the run's attention."""
    entries = pattern_entries(model)
    return [entries[entry] for entry in model.attention_pattern] or [attention]


def named(model: ModelConfig, attention: AttentionConfig) -> AttentionConfig:
    """What a run is called by: its attention, or the name of its hybrid, which has no options of its own."""
    if not model.attention_pattern:
        return attention
    return AttentionConfig(hybrid_name(member.name for member in attention_of_layers(model, attention)), {})


def positions_name(schemes: Sequence[str]) -> str:
    """One name for the schemes of all layers.

    >>> positions_name(["rope", "rope"]), positions_name(["none", "none", "none", "rope"])
    ('rope', '3xnone+rope')
    """
    return schemes[0] if len(set(schemes)) == 1 else hybrid_name(schemes)


def hybrid_name(names: Iterable[str]) -> str:
    """One name for a pattern of backends.

    >>> hybrid_name(["gla", "gla", "gla", "sdpa"])
    '3xgla+sdpa'
    """
    runs = [(name, len(list(run))) for name, run in groupby(names)]
    return "+".join(name if count == 1 else f"{count}x{name}" for name, count in runs)


def hybrid_parts(name: str) -> list[str]:
    """The pattern behind a name; a plain name is a pattern of one.

    >>> hybrid_parts("3xgla+sdpa"), hybrid_parts("gla")
    (['gla', 'gla', 'gla', 'sdpa'], ['gla'])
    """
    parts: list[str] = []
    for part in name.split("+"):
        counted = re.fullmatch(r"([1-9]\d?)x(\w+)", part)
        parts += [counted[2]] * int(counted[1]) if counted else [part]
    return parts
