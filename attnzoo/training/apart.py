"""Whether what trained is what is evaluated: the losses of both on the same batches, and on the validation split."""

from __future__ import annotations

import math
from typing import Any

import torch

from attnzoo.measure.arithmetic import autocast
from attnzoo.model import CausalLM
from attnzoo.shapes import IGNORE
from attnzoo.tasks import Task
from attnzoo.training.callbacks import due
from attnzoo.training.config import TrainerConfig
from attnzoo.training.evaluate import summed_loss
from attnzoo.training.stream import StepStream

WINDOWS = 4
"""Steps whose batches are scored again."""
FAR, AT_LEAST = 0.5, 0.5
"""Far below: less than half of it, and by half a nat. What a few steps of training or another batch change is less."""
DEVIATIONS, VISIBLE = 5.0, 0.02
"""Of two passes over the same tokens with the same weights: standard errors, and nats, that are no accident."""


def apart(
    model: CausalLM, task: Task, cfg: TrainerConfig, quality: dict[str, Any], device: str, precision: str
) -> list[str]:
    """What a reader must see about training against evaluation, as sentences.

    The batches of the last steps are scored again in evaluation, and in training mode with gradients recorded, with the
    weights as they are now. Overfitting lowers all of these; a model that computes something else while it trains, such as
    attention without its mask, lowers only those of training. Dropout raises them.

    Args:
        quality: the record's: train_loss_nats, the mean over the last logged steps, and val_loss_nats.
    """
    evaluated, training, error = _again(model, task, cfg, device, precision)
    logged, validation = (_number(quality.get(key)) for key in ("train_loss_nats", "val_loss_nats"))
    if training < evaluated - max(DEVIATIONS * error, VISIBLE) or far_below(logged, evaluated):
        return [
            f"training loss ({logged:.3f} nats logged, {training:.3f} now) lies below that of the same batches in "
            f"evaluation ({evaluated:.3f}): the model computes something else while it trains, which may be a leak"
        ]
    if far_below(logged, validation):
        return [
            f"training loss ({logged:.3f} nats) lies far below validation ({validation:.3f}); in evaluation the same "
            f"batches have {evaluated:.3f}, so this is overfitting, or validation text of another kind"
        ]
    return []


def far_below(loss: float, other: float) -> bool:
    """Whether a loss, in nats, is less than half of another, and by at least half a nat; False where one is not finite."""
    return loss < FAR * other and other - loss > AT_LEAST


def _again(model: CausalLM, task: Task, cfg: TrainerConfig, device: str, precision: str) -> tuple[float, float, float]:
    """Mean nats of the last logged steps' batches in evaluation and in training mode, and the standard error of the
    difference, from its spread over the rows."""
    stream = StepStream(task, cfg.batch_size, cfg.accumulate, cfg.max_steps)
    was_training, rows = model.training, []
    buffers = [(b, b.clone()) for b in model.buffers()]
    try:
        for step in _last_logged(cfg):
            for batch in stream.window(step).to(torch.device(device)).batches:
                found = []
                for trains in (False, True):
                    model.train(trains)
                    with torch.set_grad_enabled(trains), autocast(precision, device):
                        _, logits = summed_loss(model, batch)
                    nats = torch.nn.functional.cross_entropy(
                        logits.detach().float().transpose(1, 2), batch.targets, ignore_index=IGNORE, reduction="none"
                    )
                    found.append(nats.double().sum(1))
                rows.append(torch.stack([*found, (batch.targets != IGNORE).sum(1).double()], 1).cpu())
    finally:
        model.train(was_training)
        with torch.no_grad():
            for buffer, held in buffers:
                buffer.copy_(held)
    evaluated, training, scored = (table := torch.cat(rows)).sum(0).tolist()
    each = (table[:, 0] - table[:, 1]) - (evaluated - training) / max(scored, 1) * table[:, 2]
    error = math.sqrt(float(each.square().sum())) / max(scored, 1)
    return evaluated / max(scored, 1), training / max(scored, 1), error


def _last_logged(cfg: TrainerConfig) -> list[int]:
    """The last steps, at most `WINDOWS`, since a loss was logged before the last time."""
    last = cfg.max_steps
    first = next((step for step in range(last - 1, 0, -1) if due(step, cfg.log_every, last)), 0)
    return list(range(max(first, last - WINDOWS), last))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
