"""Who is there, why not, and how to build it. Plugins come through the entry point group ``attnzoo.backends``."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

import torch

from attnzoo.arguments import demand, fault, flag, instance, not_there, number, text, whole
from attnzoo.arguments import device as check_device
from attnzoo.arguments import dtype as check_dtype
from attnzoo.capabilities import Options, Request
from attnzoo.contract import Attention
from attnzoo.declared import definition_faults
from attnzoo.errors import Refused, RequestError, unknown, unknown_backend
from attnzoo.masks import Mask
from attnzoo.plugins import BrokenPlugin, Unusable, entry_points, load_point, name_faults
from attnzoo.settings import read
from attnzoo.terminal import one_line

AttentionClass = TypeVar("AttentionClass", bound=type[Attention])


_classes: dict[str, type[Attention]] = {}
_broken: list[BrokenPlugin] = []
_origin: dict[str, str] = {}


def register(name: str) -> Callable[[AttentionClass], AttentionClass]:
    """Class decorator that makes an `Attention` known as ``name``.

    Raises:
        RequestError: the name is taken or cannot be one, or the class lacks a docstring, ``source`` or ``capabilities``.
    """

    demand("this cannot be registered", name_faults(name))

    def add(cls: AttentionClass) -> AttentionClass:
        if not (inspect.isclass(cls) and issubclass(cls, Attention)):
            raise RequestError(
                f"this cannot be registered as {name!r}", fault("cls", cls, "a class that extends attnzoo.Attention")
            )
        faults = [*_taken(name, cls), *definition_faults(cls, Attention)]
        if faults:
            raise RequestError(f"{cls.__qualname__} cannot be registered as {name!r}", faults)
        cls.name = name
        _classes[name] = cls
        _origin.setdefault(name, cls.__module__.split(".")[0])
        return cls

    return add


def list_backends() -> list[str]:
    """Registered names, plugins included, sorted."""
    load()
    return sorted(_classes)


def broken_plugins() -> list[BrokenPlugin]:
    """Plugins that cannot be used, with their errors."""
    load()
    return sorted(_broken, key=lambda plugin: (plugin.name, plugin.distribution))


def origin(name: str) -> str:
    """The package that brought the backend."""
    load()
    return _origin.get(name, "attnzoo")


def get(name: str) -> type[Attention]:
    """The class registered as ``name``.

    Raises:
        RequestError: no such backend (with the nearest name), or its plugin failed to import (with its error).
    """
    demand("no such backend", text("name", name))
    load()
    if name in _classes:
        return _classes[name]
    for plugin in _broken:
        if plugin.name == name:
            raise RequestError(f"backend {name!r} of {plugin.distribution} failed to import: {plugin.error}")
    raise RequestError(unknown_backend(name, _classes))


def parse_options(name: str, options: dict[str, Any]) -> Options:
    """The backend's own options from plain values, checked by name, type and sense; every fault in one error."""
    values, faults = read_options(get(name), name, options)
    if not faults:
        parsed, faults = _made(get(name), values)
        if parsed is not None:
            return parsed
    raise RequestError(f"{name} cannot take these options", faults)


def option_faults(name: str, options: dict[str, Any]) -> list[str]:
    """What is wrong with a backend's options, by name, type and sense."""
    values, faults = read_options(get(name), name, options)
    return faults or _made(get(name), values)[1]


def read_options(cls: type[Attention], name: str, options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Values for the class's ``Options`` from plain ones, and every fault; ``name`` is what the messages call it."""
    known = {f.name for f in dataclasses.fields(cls.Options)}
    faults = [unknown(f"option of {name}", key, known) for key in options if key not in known]
    values, wrong = read(cls.Options, {key: value for key, value in options.items() if key in known}, "attention.")
    if values.get("kernel", "auto") not in ("auto", *cls.kernels):
        wrong.append(unknown(f"kernel of {name}", values["kernel"], cls.kernels))
    return values, faults + wrong


def _made(cls: type[Attention], values: dict[str, Any]) -> tuple[Options | None, list[str]]:
    """The options, or why these values make no sense together."""
    try:
        return cls.Options(**values), []
    except RequestError as error:
        return None, error.reasons or [error.message]
    except Exception as error:  # other packages raise what they like
        return None, [one_line(error)]


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
    values, faults = read_options(cls, name, options)
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
        faults or _made(cls, values)[1],
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
        options=cls.Options(**values),
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
    values, faults = read_options(cls, name, options)
    demand(
        f"{name} cannot be built",
        _layout_faults(n_heads, n_kv_heads, head_dim, dropout),
        whole("d_model", d_model, 1, optional=True),
        number("scale", scale, optional=True),
        faults or _made(cls, values)[1],
    )
    parsed = cls.Options(**values)
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
        options=parsed,
    )


@cache
def load() -> None:
    """Import the package's own backends, then each plugin; a plugin that fails is kept with its error."""
    import attnzoo.backends as home

    for module in pkgutil.iter_modules(home.__path__):
        importlib.import_module(f"{home.__name__}.{module.name}")
    for point in entry_points():
        distribution = point.dist.name if point.dist else "an unknown package"
        before = dict(_classes)
        try:
            demand("it cannot be used", name_faults(point.name))
            _take(point.name, load_point(point))
        except (Unusable, RequestError) as error:
            # a broken plugin must not take the others down; it is shown wherever backends are listed
            for name in set(_classes) - set(before):  # what it had registered before it failed
                del _classes[name], _origin[name]
            said = str(error) if isinstance(error, Unusable) else "; ".join([error.message, *error.reasons])
            _broken.append(BrokenPlugin(point.name, distribution, said, getattr(error, "trace", "")))
        _origin.update(dict.fromkeys(set(_classes) - set(before), distribution))


def _take(name: str, loaded: Any) -> None:
    """Register what an entry point gave, unless its own code has done so."""
    if isinstance(loaded, ModuleType) and name in _classes:
        return
    if not (inspect.isclass(loaded) and issubclass(loaded, Attention)):
        raise RequestError(
            "it cannot be used", fault("its entry point", loaded, "a class that extends attnzoo.Attention")
        )
    other = next((known for known, cls in _classes.items() if cls is loaded), name)
    if other != name:
        raise RequestError(
            f"its class is registered as {other!r} and its entry point is called {name!r}: give both one name"
        )
    register(name)(loaded)


def _layout_faults(n_heads: Any, n_kv_heads: Any, head_dim: Any, dropout: Any) -> list[str]:
    return [
        *whole("n_heads", n_heads, 1),
        *whole("n_kv_heads", n_kv_heads, 1, optional=True),
        *whole("head_dim", head_dim, 1),
        *number("dropout", dropout, lambda p: 0 <= p < 1, "at least 0 and below 1"),
    ]


def _taken(name: str, cls: type[Attention]) -> list[str]:
    """Whose the name is already; names that differ only in case would share a folder on many systems."""
    same = [known for known, other in _classes.items() if known.lower() == name.lower() and other is not cls]
    return [
        f"the name {known!r} is taken by {_classes[known].__module__}.{_classes[known].__qualname__}" for known in same
    ]
