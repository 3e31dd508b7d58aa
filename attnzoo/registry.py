"""Who is there, why not, and how to build it. Plugins come through the entry point group ``attnzoo.backends``."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import pkgutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_type_hints

import torch

from attnzoo.arguments import demand, fault, flag, instance, number, text, whole
from attnzoo.arguments import device as check_device
from attnzoo.arguments import dtype as check_dtype
from attnzoo.capabilities import Capabilities, Options, Request
from attnzoo.contract import Attention
from attnzoo.errors import Refused, RequestError, unknown, unknown_backend
from attnzoo.masks import Mask

GROUP = "attnzoo.backends"
AttentionClass = TypeVar("AttentionClass", bound=type[Attention])


@dataclass(frozen=True)
class BrokenPlugin:
    """A plugin that could not be imported: its name, the one-line error, and the traceback."""

    name: str
    distribution: str
    error: str
    trace: str


_classes: dict[str, type[Attention]] = {}
_broken: dict[str, BrokenPlugin] = {}
_origin: dict[str, str] = {}


def register(name: str) -> Callable[[AttentionClass], AttentionClass]:
    """Class decorator that makes an `Attention` known as ``name``.

    Raises:
        RequestError: the name is taken, or the class lacks a docstring, ``source`` or ``capabilities``.
    """

    demand("this cannot be registered", text("name", name) or ([] if name else ["name='': must not be empty"]))

    def add(cls: AttentionClass) -> AttentionClass:
        if not (inspect.isclass(cls) and issubclass(cls, Attention)):
            raise RequestError(
                f"this cannot be registered as {name!r}", fault("cls", cls, "a class that extends attnzoo.Attention")
            )
        _check_definition(name, cls)
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
    """Plugins that failed to import, with their errors."""
    load()
    return [_broken[name] for name in sorted(_broken)]


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
    if name in _broken:
        plugin = _broken[name]
        raise RequestError(f"backend {name!r} of {plugin.distribution} failed to import: {plugin.error}")
    raise RequestError(unknown_backend(name, _classes))


def parse_options(name: str, options: dict[str, Any]) -> Options:
    """The backend's own options from plain values, checked by name and type; every fault in one error."""
    values, faults = read_options(get(name), name, options)
    if faults:
        raise RequestError(f"{name} cannot take these options", faults)
    return get(name).Options(**values)


def read_options(cls: type[Attention], name: str, options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Values for the class's ``Options`` from plain ones, and every fault; ``name`` is what the messages call it."""
    known = {f.name for f in dataclasses.fields(cls.Options)}
    hints = get_type_hints(cls.Options)
    faults = [unknown(f"option of {name}", key, known) for key in options if key not in known]
    values = {}
    for key, value in options.items():
        if key in known:
            try:
                values[key] = _coerce(value, hints[key])
            except (TypeError, ValueError):
                faults.append(f"attention.{key}={value!r} is not {_spelt(hints[key])}")
    return values, faults


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
        faults,
    )
    kind = torch.device(device).type
    reasons = [] if kind != "cuda" or torch.cuda.is_available() else ["no CUDA device is available here"]
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
        faults,
    )
    parsed = cls.Options(**values)
    kv_heads = n_kv_heads if n_kv_heads is not None else cls.default_kv_heads(n_heads)
    layout = cls.layout_reasons(n_heads, kv_heads)
    if layout:
        raise Refused(f"{name} cannot be built", layout)
    if parsed.kernel not in cls.kernels:
        raise RequestError(unknown(f"kernel of {name}", parsed.kernel, cls.kernels))
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
    for point in importlib.metadata.entry_points(group=GROUP):
        distribution = point.dist.name if point.dist else "an unknown package"
        try:
            loaded = point.load()
            if inspect.isclass(loaded) and issubclass(loaded, Attention) and loaded not in _classes.values():
                register(point.name)(loaded)
            _origin[point.name] = distribution
        except Exception as error:
            # a broken plugin must not take the others down; it is shown wherever backends are listed
            line = f"{type(error).__name__}: {error}"
            _broken[point.name] = BrokenPlugin(point.name, distribution, line, traceback.format_exc())


def _layout_faults(n_heads: Any, n_kv_heads: Any, head_dim: Any, dropout: Any) -> list[str]:
    return [
        *whole("n_heads", n_heads, 1),
        *whole("n_kv_heads", n_kv_heads, 1, optional=True),
        *whole("head_dim", head_dim, 1),
        *number("dropout", dropout, lambda p: 0 <= p < 1, "at least 0 and below 1"),
    ]


def _check_definition(name: str, cls: type[Attention]) -> None:
    faults = []
    if name in _classes and _classes[name] is not cls:
        faults.append(f"the name {name!r} is taken by {_classes[name].__module__}.{_classes[name].__qualname__}")
    if not (cls.__doc__ and "__doc__" in vars(cls) and cls.__doc__.strip()):
        faults.append("it has no docstring")
    if not isinstance(getattr(cls, "source", None), str) or not cls.source:
        faults.append("it names no source (a paper or a document)")
    if not isinstance(getattr(cls, "capabilities", None), Capabilities):
        faults.append("it declares no capabilities")
    elif cls.capabilities.positions not in ("rope", "none"):
        faults.append(f"its capabilities say positions={cls.capabilities.positions!r}: rope or none")
    if not (dataclasses.is_dataclass(cls.Options) and issubclass(cls.Options, Options)):
        faults.append("its Options is not a dataclass that extends attnzoo.Options")
    if all(getattr(cls, name) is getattr(Attention, name) for name in ("attend", "weights", "pattern")):
        faults.append("it defines none of attend, weights and pattern")
    if faults:
        raise RequestError(f"{cls.__qualname__} cannot be registered as {name!r}", faults)


def _coerce(value: Any, hint: Any) -> Any:
    """A plain value from a configuration as the annotated type; raises when it is something else."""
    accepted = getattr(hint, "__args__", (hint,)) if "|" in str(hint) or "Optional" in str(hint) else (hint,)
    if value is None and type(None) in accepted:
        return None
    for kind in accepted:
        base = getattr(kind, "__origin__", kind)
        if base is tuple and isinstance(value, (list, tuple)):
            return tuple(value)
        if base is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if isinstance(base, type) and isinstance(value, base) and (base is bool or not isinstance(value, bool)):
            return value
    raise TypeError(value)


def _spelt(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)
