"""Public names that are loaded at first use, so that importing a package imports nothing heavy."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def at_first_use(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: each public name comes from the submodule that ``home`` gives."""

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with uncollected():
            return getattr(importlib.import_module(f"{package}.{home[name]}"), name)

    return load


@contextmanager
def uncollected() -> Iterator[None]:
    """Imports without garbage collection: what they make stays, and the collector would go through all of it again and
    again, a sixth of the time that torch takes."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
