"""What torch.compile is told about the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Function = TypeVar("Function", bound=Callable)


def constant_result(function: Function) -> Function:
    """Trace the result as a constant: `torch.compiler.assume_constant_result` without importing the compiler, which takes
    as long as torch itself."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_result
def threads() -> int:
    """How many threads an operation may take."""
    return torch.get_num_threads()
