"""A benchmark's JSON from anywhere, checked before it is shown or compared with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from attnzoo.errors import RequestError
from attnzoo.files import read_json
from attnzoo.report.records import LARGEST

NUMBER = (int, float)
SPAN = {"median": NUMBER, "low": NUMBER, "high": NUMBER}
SIDE = {"name": str, "median?": NUMBER}
ROW = {
    "backend": str, "level?": str, "op": str, "status": str, "T?": int, "B?": int, "H?": int, "G?": int, "n_kv_heads?": int,
    "D?": int, "dtype?": str, "kernel?": str, "reasons?": [str], "peak_memory_bytes?": NUMBER, "compile_s?": NUMBER,
    "timing?": {"median?": NUMBER, "low?": NUMBER, "high?": NUMBER, "samples?": [NUMBER], "ratio?": {**SPAN, "to": str}},
}  # fmt: skip
FIT = {
    "backend": str, "op": str, "quantity": str, "exponent": NUMBER, "low": NUMBER, "high": NUMBER, "declared?": NUMBER,
    "lengths?": [int], "verdict?": str, "dtype?": str, "B?": int, "H?": int, "D?": int, "n_kv_heads?": int,
}  # fmt: skip
BAR = {
    "work": str, "quantity": ("time", "state_bytes"), "ours": SIDE, "peer": SIDE, "ratio?": SPAN, "bar?": NUMBER,
    "verdict": str, "reasons": [str], "limit?": SIDE, "at_most?": SPAN, "peers?": [str],
}  # fmt: skip
CHECK = {"subject": str, "dtypes": [str], "passed": bool, "refused": [str], "tests": [{"name": str, "passed": bool}]}
BENCH = {"rows?": [ROW], "growth?": [FIT], "bars?": [BAR], "checks?": [CHECK], "machine?": {}}
"""name -> what stands there: a type, texts of which one, [each], {group}. A name with ``?`` may be missing or null."""
SHOWN = 5  # faults of one file


def read_bench(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """A benchmark, checks, or both; None where the JSON holds neither.

    Raises:
        RequestError: it cannot be read, or what it holds is no benchmark: which fields.
    """
    held = read_json(path)
    if not isinstance(held, dict) or not {"rows", "checks"} & set(held):
        return None
    found = list(_faults(held, BENCH, "")) or list(_without_interval(held))
    if found:
        rest = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        raise RequestError(f"{path} is no benchmark that can be read", [*found[:SHOWN], *rest])
    return held


def _without_interval(held: dict[str, Any]) -> Iterator[str]:
    """Medians that nothing can be compared with."""
    for n, row in enumerate(held.get("rows") or []):
        timing = row.get("timing") or {}
        if timing.get("median") is not None:
            yield from (f"rows[{n}].timing.{end} is missing" for end in ("low", "high") if timing.get(end) is None)


def _faults(value: Any, kind: Any, path: str) -> Iterator[str]:
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            yield f"{path}: must be a group of fields"
            return
        for name, inner in kind.items():
            key = name.rstrip("?")
            if value.get(key) is not None:
                yield from _faults(value[key], inner, f"{path}.{key}".lstrip("."))
            elif not name.endswith("?"):
                yield f"{path}.{key} is missing"
    elif isinstance(kind, list):
        if not isinstance(value, list):
            yield f"{path}: must be a list"
            return
        for n, item in enumerate(value):
            yield from _faults(item, kind[0], f"{path}[{n}]")
    elif isinstance(kind, tuple) and isinstance(kind[0], str):
        if value not in kind:
            yield f"{path}: must be one of {', '.join(kind)}"
    elif not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        yield f"{path}: must be {'a text' if kind is str else 'true or false' if kind is bool else 'a number'}"
    elif kind is int and not 0 < value <= 2**53:
        yield f"{path}: must be a positive size"
    elif kind is NUMBER and not 0 <= abs(value) <= LARGEST:
        yield f"{path}: must be a finite number"
