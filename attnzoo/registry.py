"""The backends: who is there, why not, and how to build one. They are components of the kind attention."""

from __future__ import annotations

from typing import Any

import torch

from attnzoo import components
from attnzoo.arguments import demand, flag, instance, not_there, number, whole
from attnzoo.arguments import device as check_device
from attnzoo.arguments import dtype as check_dtype
from attnzoo.capabilities import Request
from attnzoo.components import register
from attnzoo.contract import Attention
from attnzoo.errors import Refused
from attnzoo.masks import Mask
from attnzoo.options import Options

__all__ = ["build", "get", "list_backends", "option_faults", "origin", "parse_options", "register", "why_not"]


def list_backends() -> list[str]:
    """Registered names, plugins included, sorted."""
    return components.list_components("attention")


def origin(name: str) -> str:
    """The package that brought the backend."""
    return components.origin("attention", name)


def get(name: str) -> type[Attention]:
    """The class registered as ``name``.

    Raises:
        RequestError: no such backend (with the nearest name), or its plugin failed to import (with its error).
    """
    return components.get("attention", name)


def parse_options(name: str, options: dict[str, Any]) -> Options:
    """The backend's own options from plain values, checked by name, type and sense; every fault in one error."""
    return components.parse("attention", name, options)


def option_faults(name: str, options: dict[str, Any]) -> list[str]:
    """What is wrong with a backend's options, by name, type and sense."""
    return components.read_options("attention", name, options, "attention.")[1]


def why_not(
    name: str,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    mask: Mask = Mask(),
    n_heads: int = 8,
    n_kv_heads: int | None = None,
    head_dim: int = 64,
    training: bool = True,
    bias: bool = False,
    bias_gradient: bool = False,
    dropout: float = 0.0,
    alibi: bool = False,
    **options: Any,
) -> list[str]:
    """Every reason why a backend cannot compute this, at once; [] means it can run.

    ``n_kv_heads=None`` is the backend's own choice: H for most, 1 for mqa, H/4 for gqa. ``alibi``: the bias is ALiBi's.

    Raises:
        RequestError: an unknown backend or option, or arguments that make no sense.
    """
    cls = get(name)
    parsed, faults = components.read_options("attention", name, options, "attention.")
    demand(
        f"this cannot be asked of {name}",
        check_device("device", device, there=False),
        check_dtype("dtype", dtype),
        instance("mask", mask, Mask, "an attnzoo.Mask"),
        _layout_faults(n_heads, n_kv_heads, head_dim, dropout),
        *(
            flag(key, on)
            for key, on in (("training", training), ("bias", bias), ("bias_gradient", bias_gradient), ("alibi", alibi))
        ),
        faults,
    )
    kind, reasons = torch.device(device).type, not_there(device)
    request = Request(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads if n_kv_heads is not None else cls.default_kv_heads(n_heads),
        head_dim=head_dim,
        device=kind,
        dtype=dtype,
        mask_fields=mask.fields,
        contiguous_documents=mask.contiguous_documents,
        bias=bias,
        bias_gradient=bias_gradient,
        dropout=dropout,
        training=training,
        alibi=alibi,
        options=cls.Options(**vars(parsed)),
    )
    return reasons + cls.reasons(request)


def build(
    name: str,
    *,
    n_heads: int,
    n_kv_heads: int | None = None,
    head_dim: int,
    d_model: int | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    **options: Any,
) -> Attention:
    """An attention module.

    Args:
        name: a registered backend.
        n_heads, n_kv_heads, head_dim, d_model: H, G, D, C.
        dropout, scale: of the attention weights and scores; see `Attention`.
        options: the backend's own settings.

    Raises:
        RequestError: an unknown name or option, or sizes that make no sense.
        Refused: a head layout or kernel that the backend cannot have.
    """
    cls = get(name)
    parsed, faults = components.read_options("attention", name, options, "attention.")
    demand(
        f"{name} cannot be built",
        _layout_faults(n_heads, n_kv_heads, head_dim, dropout),
        whole("d_model", d_model, 1, optional=True),
        number("scale", scale, optional=True),
        faults,
    )
    kv_heads = n_kv_heads if n_kv_heads is not None else cls.default_kv_heads(n_heads)
    layout = cls.layout_reasons(n_heads, kv_heads)
    if layout:
        raise Refused(f"{name} cannot be built", layout)
    return cls(
        n_heads=n_heads,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        d_model=d_model,
        dropout=dropout,
        scale=scale,
        options=cls.Options(**vars(parsed)),
    )


def _layout_faults(n_heads: Any, n_kv_heads: Any, head_dim: Any, dropout: Any) -> list[str]:
    return [
        *whole("n_heads", n_heads, 1),
        *whole("n_kv_heads", n_kv_heads, 1, optional=True),
        *whole("head_dim", head_dim, 1),
        *number("dropout", dropout, lambda p: 0 <= p < 1, "at least 0 and below 1"),
    ]
