"""``python -m attnzoo.comparison.timing OUT BASELINE FOLDER…``: the timing rounds of a comparison, in a process of their own."""

from __future__ import annotations

import sys

from attnzoo.errors import AttnzooError
from attnzoo.files import write_json_atomic
from attnzoo.training.__main__ import end_with_parent


def main(out: str, baseline: str, folders: list[str]) -> None:
    """Build each folder's model anew, time all in turns, and write {backend: cost} to ``out``."""
    from attnzoo.measure.cost import time_models
    from attnzoo.measure.environment import resolve_device, resolve_precision
    from attnzoo.measure.length import length_sweep
    from attnzoo.model import build_model
    from attnzoo.training.config import load_config

    configs = {cfg.attention.name: cfg for cfg in map(load_config, folders)}
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
    write_json_atomic(out, timed)


if __name__ == "__main__":
    end_with_parent()
    try:
        main(sys.argv[1], sys.argv[2], sys.argv[3:])
    except AttnzooError as error:
        sys.exit(str(error))
