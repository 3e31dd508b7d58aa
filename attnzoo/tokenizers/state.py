"""A tokenizer from what a run's folder or an export keeps of it."""

from __future__ import annotations

from typing import Any

from attnzoo import components
from attnzoo.arguments import demand
from attnzoo.errors import RequestError, shortened
from attnzoo.terminal import one_line
from attnzoo.tokenizers.base import Tokenizer


def tokenizer_from_state(state: Any) -> Tokenizer:
    """The inverse of ``state()``. One that no package brings must have been registered.

    Raises:
        RequestError: an unknown or damaged state, or the package that it needs is missing.
    """
    name = state.get("name") if isinstance(state, dict) else None
    if name not in components.names("tokenizer"):
        raise RequestError(components.unknown_component("tokenizer", shortened(str(name), 80)))
    demand(f"the tokenizer {name} cannot be used", components.lacking("tokenizer", name, "data.tokenizer"))
    try:
        return components.get("tokenizer", name).from_state(state)
    except RequestError:
        raise
    except Exception as error:  # the library raises plain Exception for damaged JSON, and others what they like
        raise RequestError(f"the tokenizer's state is damaged: {one_line(error)}") from error
