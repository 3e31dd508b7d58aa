"""The arithmetic of a run: 16-bit types under autocast, TF32, compiled or not; each choice with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from attnzoo.contract import Attention
from attnzoo.errors import RequestError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""What a precision multiplies in; parameters stay in float32."""


def autocast(precision: str, device: torch.device | str) -> AbstractContextManager:
    """The context of a forward pass: autocast to the type of ``precision``, nothing for fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, DTYPES[precision])


@contextmanager
def tf32(on: bool, device: str) -> Iterator[None]:
    """Within it float32 matrix products and convolutions on a CUDA device may round their factors to TF32, 10 bits, or not.
    A CPU has no such mode."""
    if torch.device(device).type != "cuda":
        yield
        return
    places: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    try:
        for place in places:
            place.allow_tf32 = on
        yield
    finally:
        for place, held in zip(places, before, strict=True):
            place.allow_tf32 = held


def need_tf32(on: bool, device: str) -> None:
    """Raise where TF32 is asked for and the device has none.

    Raises:
        RequestError: a CPU, or a CUDA device before compute capability 8.0.
    """
    if not on:
        return
    if torch.device(device).type != "cuda":
        raise RequestError(f"trainer.tf32=true: {device} has no TF32, a mode of CUDA devices", ["trainer.tf32=false"])
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        having = f"{capability[0]}.{capability[1]}"
        raise RequestError(f"trainer.tf32=true: {device} has compute capability {having}, TF32 needs 8.0")


def resolve_compile(asked: bool | str, device: str, modules: Iterable[Attention]) -> tuple[bool, str]:
    """(whether training steps are compiled, why). 'auto' compiles on CUDA where every backend declares that its compiled
    form gives the same numbers, which is tried on a CPU.

    Args:
        modules: the attention of every layer, or of all models that are to be measured alike.
    """
    if asked != "auto":
        return bool(asked), "asked for by name"
    if torch.device(device).type != "cuda":
        return False, "asked for auto; eager on a CPU"
    if unknown := list(dict.fromkeys(m.name for m in modules if not m.declared(m.options, "cuda").compiles)):
        return False, f"asked for auto; not shown to give the same numbers compiled: {', '.join(unknown)}"
    return True, "asked for auto; on a CPU the compiled step gives the same numbers"
