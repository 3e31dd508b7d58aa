"""Libraries that need not be there. They are imported here alone, by whoever computes with them, and the reason is kept when
they cannot be."""

from __future__ import annotations

import importlib
import logging
from functools import cache
from importlib.util import find_spec
from types import ModuleType

from attnzoo.terminal import one_line

LIBRARIES = {
    "xformers": "pip install xformers",
    "fla": "flash-linear-attention: pip install 'attnzoo[gpu]'",
    "flash_attn": "flash-attn, built for the CUDA at hand: pip install flash-attn --no-build-isolation",
    "flash_attn_interface": "FlashAttention-3, for Hopper: built from the folder hopper of flash-attention",
}
"""Package -> how it is installed."""


def missing(module: str, device: str) -> list[str]:
    """Every reason why the library cannot compute there. It is imported only where it could."""
    package = module.partition(".")[0]
    why = [] if find_spec(package) else [f"{package} is not installed ({LIBRARIES[package]})"]
    if device != "cuda":
        why.append(f"the kernels of {package} need CUDA; this is {device}")
    elif not why and isinstance(found := _imported(module), str):
        why.append(found)
    return why


def load(module: str) -> ModuleType:
    """A module of one of these libraries, such as ``fla.ops.gla``.

    Raises:
        ImportError: it cannot be imported; `missing` says so beforehand.
    """
    found = _imported(module)
    if isinstance(found, str):
        raise ImportError(found)
    return found


@cache
def _imported(module: str) -> ModuleType | str:
    logger = logging.getLogger(module.partition(".")[0])
    level = logger.level
    logger.setLevel(logging.ERROR)  # xformers' import warns at length about optional parts that are not used here
    try:
        return importlib.import_module(module)
    except Exception as error:  # a library built for another CUDA or Triton raises what it likes; the reason is shown
        return f"{module} cannot be imported: {one_line(error)}"
    finally:
        logger.setLevel(level)
