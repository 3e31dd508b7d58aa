"""A model as a folder of two files, ``config.json`` and ``model.safetensors``, and back, its logits equal bit for bit."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import attnzoo
from attnzoo import registry
from attnzoo.arguments import demand, having, instance, path, seed, whole
from attnzoo.errors import RequestError, unknown
from attnzoo.files import json_text, read_json, write_folder_atomic
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, Recipe
from attnzoo.model.lm import CausalLM
from attnzoo.model.validation import positions_faults
from attnzoo.model.weights import check_sizes, load_weights, untied
from attnzoo.open_groups import without_foreign
from attnzoo.redact import redacted
from attnzoo.settings import plain, read
from attnzoo.tokenizers import Tokenizer, tokenizer_from_state

FORMAT = "attnzoo/1"
DTYPES = ("float64", "float32", "bfloat16", "float16")


def export(model: CausalLM, folder: str | os.PathLike[str], tokenizer: Tokenizer | None = None) -> Path:
    """Write a model: its settings and vocabulary as JSON, its weights as safetensors. `load` reads it back.

    Args:
        folder: a new one; whole or not at all.
        tokenizer: what its tokens stand for, kept beside it.

    Raises:
        RequestError: the model was not built from settings, or the folder is taken.
    """
    check_export(model, folder, tokenizer)
    config = {
        "format": FORMAT,
        "attnzoo": attnzoo.__version__,
        **redacted(plain(_with_options(recipe_of(model)))),
        "dtype": str(model.embedding.weight.dtype).removeprefix("torch."),
        "tokenizer": None if tokenizer is None else tokenizer.state(),
    }
    weights = safetensors.torch.save(untied(model), {"format": "pt"})
    return write_folder_atomic(folder, {"config.json": json_text(config).encode(), "model.safetensors": weights})


def load(folder: str | os.PathLike[str]) -> CausalLM:
    """The model that `export` wrote, on the CPU in evaluation mode.

    Raises:
        RequestError: no such folder, settings that do not fit (every fault), weights of another model.
    """
    demand("no model can be loaded from this", path("folder", folder))
    config = read_config(folder)
    recipe = _recipe(config, Path(folder) / "config.json")
    check_sizes(recipe.model, recipe.positions, recipe.vocab_size, Path(folder) / "model.safetensors")
    model = assemble(recipe.model, recipe.attention, recipe.positions, recipe.vocab_size, recipe.seed)
    assert model.recipe is not None
    model.recipe.max_tokens = recipe.max_tokens
    model = model.to(getattr(torch, config["dtype"]))
    load_weights(model, Path(folder) / "model.safetensors")
    return model.eval()


def load_tokenizer(folder: str | os.PathLike[str]) -> Tokenizer | None:
    """The tokenizer that was exported with the model; None where it had none."""
    state = read_config(folder).get("tokenizer")
    return None if state is None else tokenizer_from_state(state)


def check_export(model: CausalLM, folder: str | os.PathLike[str], tokenizer: Tokenizer | None) -> None:
    """Raise `RequestError` unless this is a model, a folder and a tokenizer or None."""
    demand(
        "this cannot be exported",
        instance("model", model, CausalLM, "an attnzoo.CausalLM"),
        path("folder", folder),
        having("tokenizer", tokenizer, ("name", "vocab_size", "state"), "a tokenizer", optional=True),
    )


def recipe_of(model: CausalLM) -> Recipe:
    """What the model was built from.

    Raises:
        RequestError: it was put together by hand.
    """
    if model.recipe is None:
        raise RequestError("this model was not built from settings (attnzoo.build_model): nothing could build it again")
    return model.recipe


def read_config(folder: str | os.PathLike[str]) -> Mapping[str, Any]:
    """``config.json`` of an exported model.

    Raises:
        RequestError: it is missing, or another program's.
    """
    file = Path(folder) / "config.json"
    config = read_json(file)
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        hint = "; attnzoo.from_llama reads a Llama" if isinstance(config, dict) and "model_type" in config else ""
        raise RequestError(f"{file} was not written by attnzoo export (format {FORMAT}){hint}")
    return config


def _with_options(recipe: Recipe) -> Recipe:
    """The recipe with every option of its backend, defaults included; those of a pattern stand in the model's settings."""
    if recipe.model.attention_pattern:
        return recipe
    attention = recipe.attention
    options = dataclasses.asdict(registry.parse_options(attention.name, attention.options))
    return dataclasses.replace(recipe, attention=AttentionConfig(attention.name, options))


def _recipe(config: Mapping[str, Any], file: Path) -> Recipe:
    names = [field.name for field in dataclasses.fields(Recipe)]
    recipe, faults = read(Recipe, {name: config[name] for name in names if name in config})
    faults += [f"{name} is missing" for name in names if name not in config and name != "max_tokens"]
    if positions := recipe.get("positions"):
        if positions.name == "rope":
            recipe.setdefault("max_tokens", positions.options.get("max_tokens", Recipe.max_tokens))
        without_foreign("positions", positions)  # earlier versions wrote the options of every scheme
        faults += positions_faults(positions, 0)
    if config.get("dtype") not in DTYPES:
        faults.append(unknown("dtype", str(config.get("dtype")), DTYPES))
    faults += whole("vocab_size", recipe.get("vocab_size", 1), 1) + seed("seed", recipe.get("seed", 0))
    faults += whole("max_tokens", recipe.get("max_tokens", 1), 1)
    if faults:
        raise RequestError(f"{file} cannot be used", faults)
    return Recipe(**recipe)
