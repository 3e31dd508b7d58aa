"""The causal language model around an attention. Loaded at first use, so that reading settings needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnzoo.lazy import at_first_use

if TYPE_CHECKING:
    from attnzoo.model.build import build_model
    from attnzoo.model.layer import AttentionLayer
    from attnzoo.model.lm import CausalLM

_HOME = {"CausalLM": "lm", "AttentionLayer": "layer", "build_model": "build"}
__all__ = ["AttentionLayer", "CausalLM", "build_model"]
__getattr__ = at_first_use(__name__, _HOME)
