"""What torch.compile is told about the kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

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


def one_graph(function: Function, backend: Any = "inductor", **how: Any) -> Function:
    """The function compiled whole: what cannot be one graph is an error, and not eager code in between."""
    return own_graphs(function, fullgraph=True, backend=backend, **how)


def own_graphs(function: Function, **how: Any) -> Function:
    """`torch.compile`, with graphs that count for this one alone where torch can tell (2.13): after eight of one function it
    goes back to eager code in silence, or raises, and all models share one."""
    alone = {"isolate_recompiles": True} if "isolate_recompiles" in inspect.signature(torch.compile).parameters else {}
    return torch.compile(function, **how, **alone)  # type: ignore[call-overload]


def growing() -> AbstractContextManager:
    """Within it, what another token changes is left open from the first graph on: the length of a cache, and the padding's."""
    names = r".*\.length,L\['key_padding'\]:1"
    return torch.compiler.config.patch(dynamic_sources=names)  # type: ignore[attr-defined]


def torchs_reason(error: BaseException) -> str:
    """What torch's compiler says of itself: its first line and its explanation; pages of advice follow."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    explained = [line for line in lines[1:] if line.startswith("Explanation:")]
    return ". ".join([lines[0], *(line.removeprefix("Explanation:").strip() for line in explained[:1])])
