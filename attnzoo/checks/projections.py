"""What `check projection:NAME` holds a projection to: a model that has it decodes, pads and packs as it computes in parallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from attnzoo import components
from attnzoo.arguments import demand
from attnzoo.checks import decode_properties, model_properties
from attnzoo.checks.compare import Failed
from attnzoo.checks.model_gradients import model_gradients
from attnzoo.checks.model_properties import Model
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig
from attnzoo.model.projection import Projection

VOCABULARY = 40


def subject(cls: type[Projection], given: Mapping[str, Any], device: str) -> Model:
    """A model of two layers with the projection and a short convolution. ``given``: the projection's own options."""
    _, faults = components.read_class(cls.Options, "projection", cls.name, given, "")
    if cls.name == "unregistered":
        faults.append("it has no name yet: register it")
    demand(f"the projection {cls.__name__} cannot be checked", faults)
    cfg = ModelConfig(
        n_layers=2, d_model=32, n_heads=4, short_conv=3, projection=cls.name, projection_options=dict(given)
    )
    lm = assemble(cfg, AttentionConfig("exact", {}), PositionsConfig("rope"), VOCABULARY, 0)
    return Model(lm.to(device).eval(), VOCABULARY, torch.device(device), torch.Generator().manual_seed(0))


def cache_bytes_by_formula(m: Model) -> str:
    """The cache of a layer takes as many bytes as `cache_bytes` says."""
    for layer in m.fn.layers:  # type: ignore[attr-defined]
        for rows, tokens in ((1, 8), (3, 50)):
            cache = layer.attention.new_cache(rows, tokens, m.device, torch.float32)
            said = layer.attention.cache_bytes(rows, tokens, torch.float32)
            if cache.nbytes != said:
                raise Failed(f"{cache.nbytes} bytes", f"{said} bytes", "cache_bytes", f"{rows} rows of {tokens} tokens")
    return "1 row of 8 tokens, 3 of 50"


def _without_gradients(prop: Callable[[Model], str]) -> Callable[[Model], str]:
    def run(m: Model) -> str:
        with torch.no_grad():
            return prop(m)

    run.__name__, run.__doc__ = prop.__name__, prop.__doc__
    return run


PROPERTIES = (
    cache_bytes_by_formula,
    *map(_without_gradients, (
        model_properties.batch_independence, model_properties.left_padding, model_properties.right_padding,
        model_properties.documents_isolated, model_gradients, decode_properties.decode_positions,
        decode_properties.full_cache, decode_properties.generation, decode_properties.padded_generation,
    )),
)  # fmt: skip
