"""Peak memory of one piece of a benchmark's work, in a process of its own.

``python -m attnzoo.measure.fresh`` reads one JSON description on standard input and prints one JSON result.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import torch

from attnzoo import processes
from attnzoo.measure.bench_row import Setting
from attnzoo.measure.bench_turns import maker
from attnzoo.measure.malloc import return_freed_memory
from attnzoo.measure.memory import (
    in_own_process,
    nothing,
    peak_memory,
    process_peak,
    reset_process_peak,
    told,
)
from attnzoo.measure.outcome import outcome

LONGEST = 600.0  # seconds
FEW = 64  # tokens of a first call, which loads what the libraries load at first use


def fresh_peak(
    level: str, name: str, op: str, setting: Setting, n_tokens: int, timeout: float = LONGEST
) -> dict[str, Any]:
    """Peak memory of one call beyond its inputs.

    Returns:
        {status, reasons, bytes, method, process_bytes, process_method}: ``bytes`` as `peak_memory` counts them,
        ``process_bytes`` the rise of the process's resident memory (None on CUDA). None where ``status`` is not ok.
    """
    settings = asdict(setting) | {"dtype": str(setting.dtype).removeprefix("torch.")}
    work = {"level": level, "name": name, "op": op, "setting": settings, "n_tokens": n_tokens}
    return in_own_process("attnzoo.measure.fresh", work | {"threads": torch.get_num_threads()}, timeout)


def main() -> None:
    """What the process does that `fresh_peak` starts."""
    processes.end_with_parent()
    return_freed_memory()
    print(json.dumps(_measure(told())))


def _measure(description: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(description["threads"])
    settings = description["setting"]
    setting = Setting(**settings | {"dtype": getattr(torch, settings["dtype"])})
    make, name, op = maker(description["level"]), description["name"], description["op"]
    try:
        small = make(name, op, setting, min(FEW, description["n_tokens"]))
        small.ready()
        small.contestant.run()
        work = make(name, op, setting, description["n_tokens"])
        work.ready()
        before, process_method = reset_process_peak()
        work.contestant.run()
        risen = None if torch.device(setting.device).type == "cuda" else process_peak() - before
        work.ready()
        extra, method = peak_memory(work.contestant.run, setting.device)
    except Exception as error:  # the parent puts the reason in the row
        return nothing(*outcome(error))
    numbers = {"bytes": extra, "process_bytes": risen}
    methods = {
        "method": f"{method}, process of its own",
        "process_method": process_method if risen is not None else None,
    }
    return {"status": "ok", "reasons": [], **numbers, **methods}


if __name__ == "__main__":
    main()
