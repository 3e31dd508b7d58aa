"""Peak memory of a piece of work, and of a training step in a process of its own.

On a CPU the peak is the running maximum of the byte counts of the profiler's memory events: every tensor allocation and
release of torch, so it is deterministic and knows nothing of the interpreter or of other work. As a second witness the
process also reports how far its own resident memory rose (VmHWM, reset before the step; ru_maxrss where there is no
/proc, which a child inherits from its parent and so may hide a small rise; none is forked there).
On CUDA the peak is the caching allocator's, after a reset.

``python -m attnzoo.measure.memory`` reads one JSON description on standard input and prints one JSON result.
"""

from __future__ import annotations

import gc
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from attnzoo import components, processes
from attnzoo.from_files import code_of, load_code
from attnzoo.kernels.blocks import static_scores
from attnzoo.kernels.flex import static_block_mask
from attnzoo.measure.latency import synchronize
from attnzoo.measure.malloc import return_freed_memory
from attnzoo.measure.outcome import outcome
from attnzoo.measure.step import TrainStep
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig

if TYPE_CHECKING:
    from attnzoo.training.config import RunConfig

CPU_METHOD = "running maximum of torch.profiler's memory events"
CUDA_METHOD = "peak of torch's CUDA allocator after a reset"


def peak_memory(work: Callable[[], object], device: str = "cpu") -> tuple[int, str]:
    """Bytes allocated on the device at the worst moment of ``work()``, beyond what was allocated before; and the
    method.

    What the first call of something allocates for good (workspaces, compiled code) counts: warm up before. Masks that
    are built once and kept are dropped first, so that they count.
    """
    static_scores.cache_clear()
    static_block_mask.cache_clear()
    if torch.device(device).type == "cuda":
        synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before, CUDA_METHOD
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would print two lines at each use
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak, CPU_METHOD


def train_step_memory(
    cfg: RunConfig,
    *,
    vocab_size: int,
    batch_size: int,
    n_tokens: int,
    device: str = "cpu",
    precision: str = "fp32",
    timeout: float | None = 600.0,
) -> dict[str, Any]:
    """Peak memory of a training step (forward, backward, AdamW) of the configured model, in a process of its own.

    Returns:
        {status, reasons, bytes, method, resting_bytes, process_bytes, process_method}: ``bytes`` is the peak with
        parameters and optimiser state, ``resting_bytes`` those alone, ``process_bytes`` the rise of the process's
        resident memory (None on CUDA). Where ``status`` is not ok the numbers are None.
    """
    description = _describe(cfg, vocab_size, batch_size, n_tokens, device, precision)
    return in_own_process("attnzoo.measure.memory", description, timeout)


def _describe(
    cfg: RunConfig, vocab_size: int, batch_size: int, n_tokens: int, device: str, precision: str
) -> dict[str, Any]:
    """What that process needs to know, as plain values."""
    return {
        "attention": asdict(cfg.attention),
        "positions": asdict(cfg.positions),
        "model": asdict(cfg.model),
        "seed": cfg.seed,
        "vocab_size": vocab_size,
        "batch_size": batch_size,
        "n_tokens": n_tokens,
        "device": device,
        "precision": precision,
        "threads": torch.get_num_threads(),
    }


def in_own_process(module: str, description: dict[str, Any], timeout: float | None) -> dict[str, Any]:
    """What ``main`` of a module prints for a description, which it reads on standard input: arguments are for all to see, and a
    backend's options may hold a secret. Where it fails, its status and reasons."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        here = [(kind, name) for kind in components.KINDS for name in components.registered(kind)]
        given = json.dumps({"code": code_of(here)[0], **description})
        process = processes.start(module, out=out, err=err, given=given)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return nothing("failed", [f"the process that measured memory did not end within {timeout:g} s"])
        finally:
            process.kill()
            process.wait()
        if status == 0:
            return json.loads(processes.last_line(out))
        if status == -signal.SIGKILL:
            return nothing(
                "oom", ["the process that measured memory was killed: most likely the machine ran out of memory"]
            )
        said = processes.last_line(err) or "no message"
        return nothing("failed", [f"the process that measured memory ended with status {status}: {said}"])


def main() -> None:
    """What the process does that `train_step_memory` starts."""
    processes.end_with_parent()
    return_freed_memory()
    print(json.dumps(_measure(told())))


def told() -> dict[str, Any]:
    """The description on standard input, once the files of components are loaded that whoever wrote it had loaded."""
    description = json.load(sys.stdin)
    load_code(description.pop("code"), allowed=True)
    return description


def _measure(description: dict[str, Any]) -> dict[str, Any]:
    """Build the model and weigh a step."""
    device = description["device"]
    torch.set_num_threads(description["threads"])
    try:
        model = assemble(
            ModelConfig(**description["model"]),
            AttentionConfig(**description["attention"]),
            PositionsConfig(**description["positions"]),
            description["vocab_size"],
            description["seed"],
        ).to(device)
        # a step on few tokens first: it makes the optimiser state, and loads what the libraries load at first use
        small = TrainStep(model, 1, min(8, description["n_tokens"]), precision=description["precision"])
        small()
        step = TrainStep(
            model, description["batch_size"], description["n_tokens"], precision=description["precision"],
            make_optimizer=lambda _: small.optimizer,
        )  # fmt: skip
        resting = step.resting_bytes()
        before, method = reset_process_peak()
        step()
        risen = None if torch.device(device).type == "cuda" else process_peak() - before
        extra, how = peak_memory(step, device)
    except Exception as error:  # the parent puts the reason in the cell
        return nothing(*outcome(error))
    return {
        "status": "ok",
        "reasons": [],
        "bytes": resting + extra,
        "method": f"parameters, AdamW state and batch, plus {how} over one step, process of its own",
        "resting_bytes": resting,
        "process_bytes": risen,
        "process_method": method if risen is not None else None,
    }


def nothing(status: str, reasons: list[str]) -> dict[str, Any]:
    """A result without numbers."""
    numbers = dict.fromkeys(("bytes", "method", "resting_bytes", "process_bytes", "process_method"))
    return {"status": status, "reasons": reasons, **numbers}


def reset_process_peak() -> tuple[int, str]:
    """Peak resident bytes, set back to the present ones where the system can; and how the peak is read."""
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return process_peak(), "rise of the process's peak resident memory (VmHWM)"
    except OSError:
        return process_peak(), "rise of the process's peak resident memory (ru_maxrss)"


def process_peak() -> int:
    """Peak resident bytes of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
