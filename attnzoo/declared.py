"""What a backend declares, and why it cannot compute a request. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar

from attnzoo.arguments import shown, text
from attnzoo.capabilities import Capabilities, Options, Request
from attnzoo.capabilities import Options as AnyOptions
from attnzoo.settings import plain, read
from attnzoo.terminal import one_line


class Declared:
    """The part of an attention's class that can be asked before anything is built."""

    Options: ClassVar[type[Options]] = Options
    capabilities: ClassVar[Capabilities]
    source: ClassVar[str]
    kernels: ClassVar[tuple[str, ...]] = ("auto",)
    projection: ClassVar[str] = "qkv"
    name: ClassVar[str] = "unregistered"

    @classmethod
    def declared(cls, options: AnyOptions, device: str = "cpu") -> Capabilities:
        """``capabilities`` with these options on this kind of device, for a class whose costs depend on them."""
        return cls.capabilities

    @classmethod
    def initial_memory(cls, options: AnyOptions) -> float | None:
        """Tokens in which what is remembered fades to 1/e by gates as they start (at x = 0): the median over heads and
        channels; None where nothing fades, or by no gate."""
        return None

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        """Reasons beyond the declared capabilities, such as a kernel that is not there."""
        return ()

    @classmethod
    def default_kv_heads(cls, n_heads: int) -> int:
        return n_heads

    @classmethod
    def layout_reasons(cls, n_heads: int, n_kv_heads: int) -> list[str]:
        """Why this head layout cannot be; empty when it can."""
        if n_kv_heads < 1 or n_heads % n_kv_heads:
            return [f"{n_heads} query heads are not a multiple of {n_kv_heads} key/value heads"]
        if n_kv_heads != n_heads and not cls.capabilities.grouped_heads:
            return [f"{cls.name} takes as many key/value heads as query heads; got {n_heads} and {n_kv_heads}"]
        return []

    @classmethod
    def reasons(cls, request: Request) -> list[str]:
        """Every reason why this backend cannot compute the request; empty when it can."""
        can, why = cls.capabilities, []
        for unsupported in sorted(request.mask_fields - can.masks):
            why.append(f"{cls.name} cannot honour the mask field {unsupported!r}")
        why += cls.layout_reasons(request.n_heads, request.n_kv_heads)
        if request.options.kernel not in cls.kernels:
            why.append(f"unknown kernel {request.options.kernel!r} for {cls.name}; valid: {', '.join(cls.kernels)}")
        if request.bias and not can.bias:
            why.append(
                f"{cls.name} has no scores that a bias could be added to (alibi and relative positions need one)"
            )
        if request.dropout and not can.dropout:
            why.append(f"{cls.name} cannot drop attention weights")
        if request.cross and not can.cross:
            why.append(f"{cls.name} takes as many keys as queries")
        if request.value_dim not in (None, request.head_dim) and not can.value_dim:
            why.append(f"{cls.name} takes values of the head dim {request.head_dim}, not {request.value_dim}")
        if request.dtype not in can.dtypes:
            why.append(f"{cls.name} does not compute in {str(request.dtype).removeprefix('torch.')}")
        if request.device not in can.devices:
            why.append(f"{cls.name} does not run on {request.device}")
        elif request.training and request.device not in can.training_devices:
            why.append(f"{cls.name} has no backward on {request.device}: it runs there for inference only")
        return [*why, *cls.refusals(request)]


def definition_faults(cls: type, base: type) -> list[str]:
    """What a class lacks to be an attention that can be listed, asked and built; ``base`` is `Attention`."""
    faults, doc, source = [], vars(cls).get("__doc__"), getattr(cls, "source", None)
    if not isinstance(doc, str) or not doc.strip():
        faults.append("it has no docstring")
    if not isinstance(source, str) or not source.strip():
        faults.append("it names no source (a paper or a document)")
    if not isinstance(getattr(cls, "capabilities", None), Capabilities):
        faults.append("it declares no capabilities")
    kernels = getattr(cls, "kernels", None)
    if not isinstance(kernels, tuple) or not kernels or not all(isinstance(each, str) for each in kernels):
        faults.append(f"kernels={shown(kernels)}: must be a tuple of names, such as ('auto',)")
    faults += text("projection", getattr(cls, "projection", None))
    faults += _option_faults(cls.Options)  # type: ignore[attr-defined]
    if all(getattr(cls, name) is getattr(base, name) for name in ("attend", "weights", "pattern")):
        faults.append("it defines none of attend, weights and pattern")
    return faults


def _option_faults(kind: Any) -> list[str]:
    """What is wrong with a class of options, its annotations and its defaults."""
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind) and issubclass(kind, AnyOptions)):
        return ["its Options is not a dataclass that extends attnzoo.Options"]
    try:
        faults = read(kind, plain(kind()), "Options.")[1]
    except Exception as error:  # their code: a field without a default, an annotation that means nothing
        return [f"its Options cannot be made from its defaults: {one_line(error)}"]
    return [f"a default of its Options: {each}" for each in faults]
