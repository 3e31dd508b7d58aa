"""The weights of a model as one safetensors file, and back. No pickle: a file holds numbers and nothing that runs."""

from __future__ import annotations

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


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill ``model`` from `save_weights`.

    Raises:
        RequestError: no such file, a broken one, or one of another model, with every reason.
    """
    try:
        saved = safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise RequestError(f"there are no weights: {path} is missing") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise RequestError(f"checkpoint {path} cannot be read: {error}") from error
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
