"""The weights of a model as one safetensors file, and back. No pickle: a file holds numbers and nothing that runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import nn

from attnzoo.errors import RequestError
from attnzoo.files import write_bytes_atomic


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
