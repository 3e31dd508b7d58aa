"""The causal language model around an attention. Loaded at first use, so that reading settings needs no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnzoo.model.build import build_model
    from attnzoo.model.layer import AttentionLayer
    from attnzoo.model.lm import CausalLM

_HOME = {"CausalLM": "lm", "AttentionLayer": "layer", "build_model": "build"}
__all__ = ["AttentionLayer", "CausalLM", "build_model"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'attnzoo.model' has no attribute {name!r}")
    return getattr(importlib.import_module(f"attnzoo.model.{_HOME[name]}"), name)
