"""Public names that are loaded at first use, so that importing a package imports nothing heavy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def at_first_use(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: each public name comes from the submodule that ``home`` gives."""

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{home[name]}"), name)

    return load
