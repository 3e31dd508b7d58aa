"""``python -m attnzoo.comparison.timing OUT BASELINE FOLDER…``: the timing rounds of a comparison, in a process of their own."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from attnzoo.errors import AttnzooError
from attnzoo.files import write_json_atomic
from attnzoo.processes import end_with_parent


def main(out: str, baseline: str, *runs: str) -> int:
    """The exit status of `time_cells`; what is wrong with the request goes to standard error."""
    end_with_parent()
    try:
        time_cells(out, baseline, dict(zip(runs[::2], runs[1::2], strict=True)))
    except AttnzooError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def time_cells(out: str, baseline: str, folders: Mapping[str, str]) -> None:
    """Build the model of each variant's folder anew, time all in turns; ``out`` gets {"seconds", "cost": {variant: cost}}."""
    from attnzoo.measure.cost import time_models
    from attnzoo.measure.environment import resolve_device, resolve_precision
    from attnzoo.measure.length import length_sweep
    from attnzoo.model import build_model
    from attnzoo.training.config import load_config

    started = time.monotonic()
    configs = {variant: load_config(folder) for variant, folder in folders.items()}
    first = next(iter(configs.values()))
    device = resolve_device(first.trainer.device)
    precision, _ = resolve_precision(first.trainer.precision, device)
    models = {name: build_model(cfg).to(device) for name, cfg in configs.items()}
    timed = time_models(
        models,
        task_shape=(first.trainer.batch_size, first.task.n_tokens),
        measure=first.measure,
        baseline=baseline if baseline in models else next(iter(models)),
        precision=precision,
    )
    if first.measure.lengths:
        for name, sweep in length_sweep(models, measure=first.measure, precision=precision).items():
            timed[name]["length_sweep"] = sweep
    write_json_atomic(out, {"seconds": round(time.monotonic() - started, 2), "cost": timed})


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
