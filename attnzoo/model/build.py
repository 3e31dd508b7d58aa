"""A model from its settings."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from attnzoo import components, registry
from attnzoo.arguments import demand, having, whole
from attnzoo.contract import Attention
from attnzoo.errors import Refused, RequestError
from attnzoo.model.config import (
    AttentionConfig,
    ModelConfig,
    PositionsConfig,
    Recipe,
    attention_of_layers,
    head_dim_of,
    named,
    parameter_number,
    positions_of_layers,
    score_scale,
)
from attnzoo.model.lm import CausalLM, hidden_width, mlp_matrices
from attnzoo.model.projection import Projection
from attnzoo.model.validation import model_faults
from attnzoo.options import values
from attnzoo.positions import Positions, build_positions
from attnzoo.seeds import seeded
from attnzoo.tasks.build import build_task

if TYPE_CHECKING:
    from attnzoo.training.config import RunConfig


def build_model(cfg: RunConfig, vocab_size: int | None = None) -> CausalLM:
    """The model a run trains, its initial values drawn from ``cfg.seed``; the global random state is left alone.

    Args:
        vocab_size: V; None takes it from the task and tokenizer.

    Raises:
        RequestError, Refused: sizes that do not fit, an unknown backend or option, positions the backend cannot take.
    """
    parts = ("model", "attention", "positions", "data", "task", "seed")
    demand(
        "no model can be built from this",
        having("cfg", cfg, parts, "a configuration of a run, as attnzoo.compose makes"),
        whole("vocab_size", vocab_size, 1, optional=True),
    )
    if vocab_size is None:
        vocab_size = build_task(cfg.task, cfg.data, cfg.seed).vocab_size
    return assemble(cfg.model, cfg.attention, cfg.positions, vocab_size, cfg.seed)


def assemble(
    model: ModelConfig, attention: AttentionConfig, positions: PositionsConfig, vocab_size: int, seed: int
) -> CausalLM:
    """`build_model` from the parts that matter to it."""
    demand("no model can be built from these settings", model_faults(model, positions))
    if model.match_parameters is not None:
        model = matched(model, attention, positions, vocab_size)
    head_dim, schemes = head_dim_of(model), layer_positions(model, attention, positions)
    layers = attention_of_layers(model, attention)
    if why := [*layer_reasons(model, layers, schemes), *_embedding_reasons(schemes)]:
        raise Refused(f"{named(model, attention).name} cannot stand in this model", why)
    sizes = {"d_model": model.d_model, "n_heads": model.n_heads, "head_dim": head_dim}
    with seeded(seed, torch.get_default_device()):
        built: list[tuple[PositionsConfig, Positions]] = []
        for scheme in schemes:
            if all(scheme != other for other, _ in built):
                built.append((scheme, build_positions(scheme.name, **sizes, **scheme.options)))
        lm = CausalLM(
            model,
            vocab_size,
            lambda layer: _build_attention(layers[layer % len(layers)], model, head_dim),
            [module for scheme in schemes for other, module in built if scheme == other],
        )
    if len(built) == 1:
        positions = schemes[0]
    lm.recipe = copy.deepcopy(Recipe(model, attention, positions, vocab_size, seed))
    return lm


def layer_positions(
    model: ModelConfig, attention: AttentionConfig, positions: PositionsConfig
) -> list[PositionsConfig]:
    """The scheme of each layer with all of its options: as asked for, or with ``auto`` the one its backend declares."""
    published = [registry.get(choice.name).capabilities.positions for choice in attention_of_layers(model, attention)]
    return [
        PositionsConfig(each.name, options=values(components.parse("positions", each.name, each.options), "positions"))
        for each in positions_of_layers(model, positions, published)
    ]


def _embedding_reasons(schemes: Sequence[PositionsConfig]) -> list[str]:
    """Schemes on the embeddings that are asked for in some layers alone."""
    names = dict.fromkeys(
        scheme.name for scheme in schemes if scheme != schemes[0] or schemes.count(scheme) < len(schemes)
    )
    return [
        f"{name} adds positions to the embeddings, which every layer reads: it cannot be of some layers alone"
        for name in names if components.get("positions", name).acts_on_embeddings()
    ]  # fmt: skip


def matched(model: ModelConfig, attention: AttentionConfig, positions: PositionsConfig, vocab_size: int) -> ModelConfig:
    """The model with the MLP width that brings its parameters nearest to ``match_parameters``.

    Raises:
        RequestError: without any MLP it has more than that already.
    """
    free, match = replace(model, match_parameters=None), model.match_parameters
    assert match is not None

    def count(model: ModelConfig, attention: AttentionConfig) -> int:
        return assemble(model, attention, positions, vocab_size, seed=0).parameter_count()

    wanted = parameter_number(match)
    if wanted is None:
        wanted = count(replace(free, attention_pattern=[], attention_options={}), AttentionConfig(match, {}))
    there, step = count(free, attention), mlp_matrices(model) * model.d_model * model.n_layers
    width = hidden_width(free) + round((wanted - there) / step)
    if width < 1:
        least = there - step * (hidden_width(free) - 1)
        raise RequestError(
            f"model.match_parameters={match} is {wanted:.0f} parameters; this model has {least} at least"
        )
    return replace(free, mlp_width=width)


def layer_reasons(
    model: ModelConfig, layers: Sequence[AttentionConfig], schemes: Sequence[PositionsConfig]
) -> list[str]:
    """Every reason why the options of a layer do not fit its backend and position scheme; empty when they all do."""
    why = []
    pairs = [(registry.get(layers[n % len(layers)].name), scheme.name) for n, scheme in enumerate(schemes)]
    for cls, name in dict.fromkeys(pairs):
        scheme = components.get("positions", name)
        if scheme.needs_bias and not cls.capabilities.bias:
            names = components.list_components("positions")
            valid = ", ".join(each for each in names if not components.get("positions", each).needs_bias)
            why.append(f"{cls.name} cannot take {name}: it has no scores to add a bias to; valid here: {valid}")
        if model.scale is not None and not cls.capabilities.scale:
            why.append(f"{cls.name} has no scores that model.scale={model.scale} could multiply")
        elif model.scale == "log_n" and not cls.capabilities.products:
            why.append(
                f"{cls.name} does not see q through q·k of whole heads alone, so that model.scale=log_n is not defined for it"
            )
        why += _projection(model, cls).reasons(model, cls, scheme)
        why += cls.layout_reasons(model.n_heads, kv_heads_of(model, cls))
    return list(dict.fromkeys(why))


def projection_of(model: ModelConfig, cls: type[Attention]) -> str:
    """The projection in front of a backend: as asked, or its own."""
    return model.projection or cls.projection


def kv_heads_of(model: ModelConfig, cls: type[Attention]) -> int:
    """G, as the projection has it."""
    return _projection(model, cls).kv_heads(model, cls)


def _projection(model: ModelConfig, cls: type[Attention]) -> type[Projection]:
    return components.get("projection", projection_of(model, cls))


def _build_attention(choice: AttentionConfig, model: ModelConfig, head_dim: int) -> Attention:
    return registry.build(
        choice.name,
        n_heads=model.n_heads,
        n_kv_heads=kv_heads_of(model, registry.get(choice.name)),
        head_dim=head_dim,
        d_model=model.d_model,
        dropout=model.attention_dropout,
        scale=score_scale(model.scale, head_dim),
        **choice.options,
    )
