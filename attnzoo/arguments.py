"""What is wrong with an argument. Each function returns its reasons, none where it is right, so that a caller adds them up and
raises one error. torch is imported where a value of its own is asked for: settings are checked without it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any

from attnzoo.errors import RequestError, nearest, unknown

Reasons = list[str]
Holds = tuple[Callable[[float], bool], str]
NOT_BELOW_ZERO: Holds = (lambda x: 0 <= x < math.inf, "must not be negative")
ABOVE_ZERO: Holds = (lambda x: 0 < x < math.inf, "must be more than 0")
LARGEST_SEED = 2**32 - 1  # numpy and Lightning take no more
DEVICES = ("auto", "cpu", "cuda", "cuda:N")
DEVICE = re.compile(r"auto|cpu(:0)?|cuda(:[0-9]{1,3})?", re.ASCII)
"""What a setting or an option may name a device by."""
LARGEST = 2**31 - 1  # of counts: past it indices overflow in kernels, long after memory has ended


def demand(message: str, *reasons: Iterable[str]) -> None:
    """Raise `RequestError` with all the reasons, if there are any."""
    if found := [reason for each in reasons for reason in each]:
        raise RequestError(message, found)


def fault(name: str, value: Any, expected: str, hint: str = "") -> Reasons:
    """The one reason why ``value`` is not what is expected."""
    return [f"{name}={shown(value)}: must be {expected}{'; ' + hint if hint else ''}"]


def whole(
    name: str,
    value: Any,
    least: int | None = None,
    most: int | None = None,
    *,
    optional: bool = False,
    hint: str = "",
) -> Reasons:
    """An integer (numpy's too), ``least`` to ``most``; ``hint`` says what it counts. What is counted (``least`` is given) is
    never more than `LARGEST`."""
    if optional and value is None:
        return []
    bound = most if most is not None or least is None else LARGEST
    if isinstance(value, (int, Integral)) and not isinstance(value, bool):
        if (least is None or int(value) >= least) and (bound is None or int(value) <= bound):
            return []
        if bound is not None and int(value) > bound:
            return fault(name, value, f"at most {bound}", hint)
    words = "" if least is None else f", {least} or more"
    return fault(name, value, f"a whole number{words}{' or None' if optional else ''}", hint)


def seed(name: str, value: Any, *, optional: bool = False) -> Reasons:
    """What every generator of random numbers takes."""
    return whole(name, value, 0, LARGEST_SEED, optional=optional)


def number(
    name: str,
    value: Any,
    within: Callable[[float], bool] = lambda x: x - x == 0,
    bounds: str = "finite",
    *,
    optional: bool = False,
) -> Reasons:
    """A real number for which ``within`` holds, which ``bounds`` says in words. NaN is within nothing."""
    if optional and value is None:
        return []
    if isinstance(value, (float, int, Real)) and not isinstance(value, bool) and within(_float(value)):
        return []
    return fault(name, value, f"a number, {bounds}{', or None' if optional else ''}")


def bounded(name: str, value: Any, within: Callable[[float], bool], phrase: str) -> Reasons:
    """A setting of the right type that must lie within bounds, said as of every other setting."""
    return [] if within(value) else [f"{name}={value}: {phrase}"]


def flag(name: str, value: Any, *, optional: bool = False) -> Reasons:
    """True or False, and nothing that merely counts as one."""
    if isinstance(value, bool) or (optional and value is None):
        return []
    return fault(name, value, "True, False or None" if optional else "True or False")


def text(name: str, value: Any, choices: Sequence[str] = ()) -> Reasons:
    """A str, one of ``choices`` where there are any."""
    if not isinstance(value, str):
        valid = f"; valid: {', '.join(choices)}" if choices else ""
        return fault(name, value, f"a text{valid}")
    return [unknown(name, value, choices)] if choices and value not in choices else []


def texts(name: str, value: Any) -> Reasons:
    """A list (or another sequence or set) of str; one str alone is no list."""
    return _list_of(text, name, value)


def paths(name: str, value: Any) -> Reasons:
    """A list of str and `pathlib.Path`; one alone is no list."""
    return _list_of(path, name, value)


def path(name: str, value: Any) -> Reasons:
    """A str or a `pathlib.Path`."""
    return [] if isinstance(value, (str, os.PathLike)) and str(value) else fault(name, value, "a path")


def instance(name: str, value: Any, kind: type | tuple[type, ...], expected: str, *, optional: bool = False) -> Reasons:
    """An instance of ``kind``, which ``expected`` says in words."""
    if isinstance(value, kind) or (optional and value is None):
        return []
    return fault(name, value, f"{expected}{' or None' if optional else ''}")


def having(name: str, value: Any, attributes: Sequence[str], expected: str, *, optional: bool = False) -> Reasons:
    """Anything with these attributes: an interface that lies above whoever asks for it."""
    if optional and value is None:
        return []
    lacking = [each for each in attributes if not hasattr(value, each)]
    return fault(name, value, expected, f"it has no {' and no '.join(lacking)}") if lacking else []


def function(name: str, value: Any, expected: str) -> Reasons:
    """Something that can be called."""
    return [] if callable(value) else fault(name, value, expected)


def tensor(name: str, value: Any, expected: str, *, optional: bool = False) -> Reasons:
    """A tensor; ``expected`` is its shape and meaning."""
    from torch import Tensor

    if isinstance(value, Tensor) or (optional and value is None):
        return []
    can = "; torch.as_tensor makes one" if isinstance(value, (list, tuple)) or hasattr(value, "__array__") else ""
    return fault(name, value, f"a tensor {expected}{' or None' if optional else ''}{can}")


def device(name: str, value: Any, *, optional: bool = False, there: bool = True) -> Reasons:
    """What torch knows as a device; with ``there``, CUDA only where the machine has it."""
    import torch

    if optional and value is None:
        return []
    expected = "a device such as 'cpu', 'cuda' or 'cuda:1', or a torch.device"
    if isinstance(value, bool) or not isinstance(value, (str, int, torch.device)):
        return fault(name, value, expected)
    try:
        found = torch.device(value)
    except (RuntimeError, ValueError):  # what torch says lists twenty kinds
        near = nearest(value, ("cpu", "cuda", "mps", "meta")) if isinstance(value, str) else None
        return fault(name, value, expected, f"did you mean {near!r}?" if near else "")
    return [f"{name}={value!r}: {reason}" for reason in not_there(found)] if there else []


def not_there(device: Any) -> Reasons:
    """Why this machine has no such CUDA device; nothing for devices of other kinds."""
    import torch

    device = torch.device(device)
    if device.type != "cuda":
        return []
    if not torch.cuda.is_available():
        return ["no CUDA device is available here"]
    count = torch.cuda.device_count()
    there = "is 1 CUDA device" if count == 1 else f"are {count} CUDA devices"
    return [] if (device.index or 0) < count else [f"there {there}, counted from 0"]


def dtype(name: str, value: Any, *, floating: bool = False, optional: bool = False) -> Reasons:
    """A torch.dtype, with ``floating`` one of real numbers."""
    import torch

    if optional and value is None:
        return []
    if isinstance(value, torch.dtype) and (value.is_floating_point or not floating):
        return []
    valid = ("float32", "bfloat16", "float16", "float64")
    near = nearest(value.removeprefix("torch."), valid) if isinstance(value, str) else None
    listed = ", ".join(f"torch.{each}" for each in valid)
    return fault(name, value, f"one of {listed}", f"did you mean torch.{near}?" if near else "")


def _float(value: Any) -> float:
    """The value as a float; an integer too large for one is infinite."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _list_of(check: Callable[[str, Any], Reasons], name: str, value: Any) -> Reasons:
    if isinstance(value, (str, os.PathLike)):
        return fault(name, value, f"a list, such as [{str(value)!r}]")
    if not isinstance(value, (list, tuple, set, frozenset)):
        return fault(name, value, "a list")
    return [reason for n, each in enumerate(value) for reason in check(f"{name}[{n}]", each)]


def shown(value: Any) -> str:
    """A value in a message: its repr where that is short, else its type; of arrays the shape too."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{type(value).__module__}.{type(value).__name__} {value.dtype} {tuple(value.shape)}"
    try:
        written = repr(value)
    except Exception:  # its own code, or an integer of more digits than Python writes
        return type(value).__name__
    return written if len(written) <= 40 and "\n" not in written and " at 0x" not in written else type(value).__name__
