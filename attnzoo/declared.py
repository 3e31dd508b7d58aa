"""What a backend declares, and why it cannot compute a request. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from attnzoo.arguments import shown, text
from attnzoo.capabilities import Capabilities, Request
from attnzoo.components import Component
from attnzoo.options import Options as AnyOptions


class Declared(Component):
    """The part of an attention's class that can be asked before anything is built."""

    kind: ClassVar[str] = "attention"
    capabilities: ClassVar[Capabilities]
    kernels: ClassVar[tuple[str, ...]] = ("auto",)
    projection: ClassVar[str] = "qkv"

    @classmethod
    def definition_faults(cls) -> list[str]:
        """What a class lacks to be an attention that can be listed, asked and built."""
        faults = super().definition_faults()
        if not isinstance(getattr(cls, "capabilities", None), Capabilities):
            faults.append("it declares no capabilities")
        kernels = getattr(cls, "kernels", None)
        if not isinstance(kernels, tuple) or not kernels or not all(isinstance(each, str) for each in kernels):
            faults.append(f"kernels={shown(kernels)}: must be a tuple of names, such as ('auto',)")
        faults += text("projection", getattr(cls, "projection", None))
        base = next(each for each in cls.__mro__ if each.__name__ == "Attention" and each is not cls)
        if all(getattr(cls, name) is getattr(base, name) for name in ("attend", "weights", "pattern")):
            faults.append("it defines none of attend, weights and pattern")
        return faults

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
