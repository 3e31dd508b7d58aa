"""The weights of a model as one safetensors file, and back. No pickle: a file holds numbers and nothing that runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import nn

from attnzoo import components
from attnzoo.errors import RequestError
from attnzoo.files import write_bytes_atomic
from attnzoo.model.config import AUTO, ModelConfig, PositionsConfig, parameter_number, positions_entries
from attnzoo.options import values


def save_weights(model: nn.Module, path: Path, metadata: dict[str, str] | None = None) -> None:
    """The parameters and buffers as safetensors, each tensor once, whatever names it is tied to."""
    write_bytes_atomic(path, safetensors.torch.save(untied(model), {"format": "pt", **(metadata or {})}))


def saved_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a safetensors file, by its header alone.

    Raises:
        RequestError: no such file, or a broken one.
    """
    with _readable(path), safetensors.safe_open(path, "pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  no mapping


def check_sizes(model: ModelConfig, positions: PositionsConfig, vocab_size: int, path: Path) -> None:
    """Refuse settings for which the file has too few numbers, before anything is allocated for them.

    Raises:
        RequestError: no such file, a broken one, or one of another model, with every reason.
    """
    shapes = saved_shapes(path)
    held = sum(math.prod(shape) for shape in shapes.values())
    heads = model.n_heads * (model.head_dim or 1)
    needed = {
        f"model.d_model={model.d_model} and vocab_size={vocab_size}": model.d_model * vocab_size,
        f"model.n_heads={model.n_heads}": heads * model.d_model,
        f"model.mlp_width={model.mlp_width}": (model.mlp_width or 0) * model.d_model,
        f"model.mlp_ratio={model.mlp_ratio}": model.mlp_ratio * model.d_model**2 if model.mlp_width is None else 0,
        f"model.latent_dim={model.latent_dim}": (model.latent_dim or 0) * model.d_model,
        f"model.short_conv={model.short_conv}": model.short_conv,
        f"model.match_parameters={model.match_parameters}": (parameter_number(model.match_parameters) or 0) / 2,
    } | _of_positions(model, positions)
    why = [f"{setting}: more than the {held} numbers of the file" for setting, n in needed.items() if n > held]
    if model.n_layers > len(shapes):
        why.append(f"model.n_layers={model.n_layers}: the file holds {len(shapes)} tensors")
    if why:
        raise RequestError(f"checkpoint {path} is of another model", why)


def _of_positions(model: ModelConfig, positions: PositionsConfig) -> dict[str, int]:
    """The numbers that each position scheme has at least, by what sets them."""
    needed = {}
    for scheme in positions_entries(positions).values():
        if scheme.name != AUTO:
            cls = components.get("positions", scheme.name)
            options = components.parse("positions", scheme.name, scheme.options)
            said = " and ".join(f"positions.{key}={value}" for key, value in values(options, "positions").items())
            needed[said] = cls.least_parameters(options, d_model=model.d_model, n_heads=model.n_heads)
    return needed


def saved_vocab_size(path: Path) -> int:
    """V of the model whose weights are in a file of `save_weights`.

    Raises:
        RequestError: no such file, a broken one, or one without an embedding.
    """
    shape = saved_shapes(path).get("embedding.weight", ())
    if len(shape) != 2:
        raise RequestError(f"checkpoint {path} is of another model", ["embedding.weight (V, C) is missing"])
    return shape[0]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise RequestError(f"there are no weights: {path} is missing") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise RequestError(f"checkpoint {path} cannot be read: {error}") from error


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill ``model`` from `save_weights`.

    Raises:
        RequestError: no such file, a broken one, or one of another model, with every reason.
    """
    with _readable(path):
        saved = safetensors.torch.load_file(path)
    own = untied(model)
    faults = [f"{name} is missing" for name in own if name not in saved]
    faults += [f"{name} is not in this model" for name in saved if name not in own]
    faults += [
        f"{name} is {tuple(saved[name].shape)}, expected {tuple(t.shape)}"
        for name, t in own.items()
        if name in saved and saved[name].shape != t.shape
    ]
    if faults:
        raise RequestError(f"checkpoint {path} is of another model", faults)
    model.load_state_dict(saved, strict=False)  # a tied name is filled through the one that was saved


def untied(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state dict with each piece of memory under its first name only."""
    seen: set[Any] = set()
    kept = {}
    for name, tensor in model.state_dict().items():
        where = (tensor.data_ptr(), tensor.shape) if tensor.numel() else name
        if where not in seen:
            seen.add(where)
            kept[name] = tensor.detach().cpu().contiguous()
    return kept
