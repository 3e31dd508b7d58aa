"""``python -m attnzoo.comparison.timing OUT``: the timing rounds of a comparison, in a process of their own."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

from attnzoo.errors import AttnzooError
from attnzoo.files import write_json_atomic
from attnzoo.processes import end_with_parent, show_stacks


def main(out: str) -> int:
    """Read {"id", "baseline", "variants": {variant: configuration}} from standard input; the exit status of `time_variants`.

    What is wrong with the request goes to standard error.
    """
    end_with_parent()
    show_stacks()
    asked = json.load(sys.stdin)
    started = time.monotonic()
    try:
        timed = time_variants(asked["variants"], asked["baseline"])
    except AttnzooError as error:
        print(error.whole, file=sys.stderr)
        return 1
    timed |= {"id": asked["id"], "baseline": asked["baseline"], "seconds": round(time.monotonic() - started, 2)}
    write_json_atomic(out, timed)
    return 0


def time_variants(variants: Mapping[str, Mapping[str, Any]], baseline: str) -> dict[str, Any]:
    """Build the model of each variant's configuration anew and time all in turns.

    Returns:
        {"cost": {variant: timings}, "environment"}: where a model cannot be built, its training step says why.
    """
    from attnzoo.from_files import load_code
    from attnzoo.measure.arithmetic import need_tf32, resolve_compile, tf32
    from attnzoo.measure.cost import time_models
    from attnzoo.measure.environment import environment, resolve_device, resolve_precision
    from attnzoo.measure.length import length_sweep
    from attnzoo.measure.outcome import outcome
    from attnzoo.model import build_model
    from attnzoo.training.config import from_dict

    configs = {variant: from_dict(values) for variant, values in variants.items()}
    for cfg in configs.values():
        load_code(cfg.code, allowed=True)  # whoever started this process has named it
    first = next(iter(configs.values()))
    device = resolve_device(first.trainer.device)
    precision, why = resolve_precision(first.trainer.precision, device)
    need_tf32(first.trainer.tf32, device)
    models, timed = {}, dict[str, dict[str, Any]]()
    for name, cfg in configs.items():
        try:
            models[name] = build_model(cfg).to(device)
        except Exception as error:  # the others are timed still; the reason stands in the row
            traceback.print_exc()
            status, reasons = outcome(error)
            timed[name] = {
                "train_step_ms": {"median": None, "low": None, "high": None, "status": status, "reasons": reasons}
            }
    modules = [module for model in models.values() for module in model.attention_modules()]
    compiled, reason = resolve_compile(first.trainer.compile, device, modules)  # one for all
    with tf32(first.trainer.tf32, device):
        if models:
            timed |= time_models(
                models,
                task_shape=(first.trainer.batch_size, first.task.n_tokens),
                measure=first.measure,
                baseline=baseline if baseline in models else None,
                precision=precision,
                compiled=compiled,
            )
        if models and first.measure.lengths:
            for name, sweep in length_sweep(models, measure=first.measure, precision=precision).items():
                timed[name]["length_sweep"] = sweep
    there = environment(device, precision, why)
    there |= {"tf32": first.trainer.tf32, "compiled": compiled, "compiled_reason": reason}
    kept = ("attnzoo", "torch", "device", "device_name", "cpu", "threads", "precision", "tf32", "compiled", "compiled_reason",
            "gpu", "git_commit", "start")  # fmt: skip
    return {"cost": timed, "environment": {key: there[key] for key in kept}}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
