"""The second half of the picture: a fresh small model of the same attention on a synthetic task.

On a small budget text alone makes a narrow window look best, since most of what can be learned is near. Recall cannot
be faked with a narrow window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnzoo.errors import Refused
from attnzoo.measure.environment import resolve_precision
from attnzoo.model import build_model
from attnzoo.model.config import resized
from attnzoo.open_groups import option_names
from attnzoo.tasks import build_task
from attnzoo.training.config import RunConfig, TrainerConfig
from attnzoo.training.fit import fit
from attnzoo.training.stopping import Stopping

MACHINE = ("device", "threads", "progress")
"""What the probe takes over from the main run's ``trainer``: where it runs and what is shown, nothing that it learns by."""


def probe_config(cfg: RunConfig) -> RunConfig:
    """The run that the probe is: the same attention, positions and seed; the probe's own task, sizes, budget and
    training. What the main run is trained by (its learning rates, schedule, precision …) changes nothing here, so that every
    cell of a sweep over it has the same probe; what ``probe`` does not set is as by default in
    `TrainerConfig` and in the options of its optimizer.

    Heads are shared among queries as in the main model, as far as the probe's heads divide. A hybrid's probe has at least
    a layer for each entry of its pattern.
    """
    probe, main = cfg.probe, cfg.model
    n_kv_heads = None
    if main.n_kv_heads is not None:
        sharing = min(main.n_heads // main.n_kv_heads, probe.n_heads)
        while probe.n_heads % sharing:
            sharing -= 1
        n_kv_heads = probe.n_heads // sharing
    model = resized(
        main,
        n_layers=max(probe.n_layers, len(cfg.positions.pattern)),
        d_model=probe.d_model,
        n_heads=probe.n_heads,
        n_kv_heads=n_kv_heads,
        short_conv=probe.short_conv,
        dropout=0.0,
        attention_dropout=0.0,
    )
    rates = {"muon_lr": probe.learning_rate, "adamw_lr": probe.adamw_lr}
    known = option_names("optimizer", probe.optimizer)
    trainer = TrainerConfig(
        **{name: getattr(probe, name) for name in ("max_steps", "batch_size", "optimizer", "precision")},
        options={key: rate for key, rate in rates.items() if key in known},
        eval_every=max(1, probe.max_steps // 4),
        **{name: getattr(cfg.trainer, name) for name in MACHINE},
    )
    return replace(cfg, model=model, trainer=trainer, task=probe.task)


def run_probe(cfg: RunConfig, device: str, stop: Stopping | None = None) -> dict[str, Any]:
    """Train and score it; a stop that is asked for ends it between two steps.

    Returns:
        task_accuracy, task_chance, task_curve ([[tokens, accuracy], …]), each by task name, for the record's quality;
        where the backend cannot compute the probe's model, an accuracy of None and task_reasons.
    """
    probe = probe_config(cfg)
    precision, _ = resolve_precision(probe.trainer.precision, device)
    task = build_task(probe.task, probe.data, probe.seed)
    try:
        model = build_model(probe, task.vocab_size).to(device)
        fitted = fit(
            model, task, probe.trainer, seed=probe.seed, device=device, precision=precision,
            title=f"{cfg.attention.name} · {task.name}", stop=stop,
        )  # fmt: skip
    except Refused as refused:
        reasons = refused.reasons or [refused.message]
        return {"task_accuracy": {task.name: None}, "task_chance": {task.name: task.chance}, "task_reasons": reasons}
    curve = [[point["tokens"], point["val_accuracy"]] for point in fitted.curve]
    return {
        "task_accuracy": {task.name: curve[-1][1]},
        "task_chance": {task.name: task.chance},
        "task_curve": {task.name: curve},
    }
