"""Settings of the language model. No torch here: the command line reads this to answer ``--help``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, ClassVar

from attnzoo import components
from attnzoo.errors import RequestError
from attnzoo.open_groups import option_names

AUTO = "auto"
"""What each layer's backend is published with: none where its `Capabilities` say so, else rope."""


@dataclass
class PositionsConfig:
    """The position scheme of every layer, or of each. Options of the schemes are further keys of this group.

    Args:
        name: a registered scheme, or auto, which gives each layer what its backend is published with: none where its
            `Capabilities` say so, else rope.
        pattern: a scheme for each layer, repeated over the layers; it takes the place of ``name``.
        pattern_options: entry of the pattern -> its options, before those of the group. ``name`` among them is the scheme, so
            that one may stand there twice with different options; without it the entry is a scheme's name itself.
    """

    chosen: ClassVar[dict[str, str]] = {"name": "positions", "pattern": "positions"}

    name: str = AUTO
    pattern: list[str] = field(default_factory=list)
    pattern_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def components(self) -> list[tuple[str, str]]:
        """The schemes that the options are of; auto gives rope where it gives any that has some."""
        return [("positions", "rope" if each.name == AUTO else each.name) for each in positions_entries(self).values()]


@dataclass
class ModelConfig:
    """The decoder.

    Args:
        n_layers: L, the number of layers.
        d_model: C, the width.
        n_heads: H, the number of query heads.
        n_kv_heads: G; None leaves it to the backend (H for most, 1 for mqa, H/4 for gqa).
        head_dim: D; None is C/H.
        projection: qkv (every head of q, k and v from x), mla (keys and values from a latent) or another registered one; None
            leaves it to the backend (qkv for all but mla).
        latent_dim: of mla: r, channels of the latent, None for 2·D.
        rope_dim: of mla: Dr, those of each head's D that carry positions, None for D/2 (where that is odd, the next smaller
            even divisor).
        projection_options: options of a projection of others.
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
    projection_options: dict[str, Any] = field(default_factory=dict)
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
    """A backend by name with its own options (``kernel`` among them, where it has several).

    Args:
        name: a registered backend.
    """

    chosen: ClassVar[dict[str, str]] = {"name": "attention"}

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Recipe:
    """All that a model is built from. Its weights and this are the model again. ``max_tokens``: the length that a Llama of others
    gives, for its export alone."""

    model: ModelConfig
    attention: AttentionConfig
    positions: PositionsConfig
    vocab_size: int
    seed: int = 0
    max_tokens: int = 2048


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


def positions_entries(positions: PositionsConfig) -> dict[str, PositionsConfig]:
    """The scheme and options behind each different entry of the pattern; of the name, where there is none."""
    found = {}
    for entry in dict.fromkeys(positions.pattern or [positions.name]):
        own = dict(positions.pattern_options.get(entry, {}))
        name = str(own.pop("name", entry))
        found[entry] = PositionsConfig(name, options={**_of_scheme(name, positions.options), **own})
    return found


def _of_scheme(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the group's options that this scheme has; all of them where there is no such scheme, or no pattern needs it."""
    scheme = "rope" if name == AUTO else name
    if scheme not in components.names("positions"):
        return dict(given)
    known = option_names("positions", scheme)
    return {key: value for key, value in given.items() if key in known}


def positions_of_layers(
    model: ModelConfig, positions: PositionsConfig, published: Sequence[str]
) -> list[PositionsConfig]:
    """The scheme of each layer with its options: layer n has entry n mod the pattern's length; ``published``: what auto gives
    the layers, repeated."""
    entries = positions_entries(positions)
    chosen = [entries[entry] for entry in positions.pattern or entries]
    found = []
    for layer in range(model.n_layers):
        scheme = chosen[layer % len(chosen)]
        if scheme.name == AUTO:
            name = published[layer % len(published)]
            scheme = PositionsConfig(name, options=_of_scheme(name, scheme.options))
        found.append(scheme)
    return found


def positions_name(schemes: Sequence[PositionsConfig]) -> str:
    """One name for the schemes of all layers: of one period of them, with the options where those alone tell two apart.

    >>> none, rope, far = PositionsConfig("none"), PositionsConfig("rope"), PositionsConfig("rope", options={"base": 1e6})
    >>> positions_name([rope, rope]), positions_name([none, none, none, rope] * 2), positions_name([rope, far])
    ('rope', '3xnone+rope', 'rope+rope(base=1000000.0)')
    """
    said = [_said(scheme, schemes) for scheme in schemes]
    period = next(n for n in range(1, len(said) + 1) if len(said) % n == 0 and said[:n] * (len(said) // n) == said)
    return hybrid_name(said[:period])


def positions_asked(positions: PositionsConfig) -> str:
    """The name of a choice before it is known what auto gives."""
    return hybrid_name(positions.pattern) if positions.pattern else positions.name


def _said(scheme: PositionsConfig, schemes: Sequence[PositionsConfig]) -> str:
    alike = [each.options for each in schemes if each.name == scheme.name]
    differing = {key: value for key, value in scheme.options.items() if any(each.get(key) != value for each in alike)}
    options = ",".join(f"{key}={value}" for key, value in differing.items())
    return f"{scheme.name}({options})" if options else scheme.name


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
