"""Quality on the validation split, by metrics: sums over all scored tokens, divided at the end."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from attnzoo.measure.arithmetic import autocast
from attnzoo.metrics.base import Metric
from attnzoo.metrics.build import MakeMetrics, build_metrics
from attnzoo.model import CausalLM
from attnzoo.shapes import IGNORE
from attnzoo.tasks import Batch, Task
from attnzoo.training.stream import to_device


def logits_of(model, batch: Batch) -> torch.Tensor:
    """(B, T, V) of a batch, padding and documents among its inputs."""
    return model(batch.tokens, key_padding=batch.key_padding, documents=batch.documents)


def summed_loss(model, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy in nats summed over the scored tokens, in float32, and the logits (B, T, V)."""
    logits = logits_of(model, batch)
    flat = logits.float().flatten(0, 1)
    return F.cross_entropy(flat, batch.targets.flatten(), ignore_index=IGNORE, reduction="sum"), logits


@torch.no_grad()
def evaluate(
    model: CausalLM,
    task: Task,
    batch_size: int,
    *,
    precision: str = "fp32",
    before_batch: Callable[[], None] = lambda: None,
    metrics: MakeMetrics = build_metrics,
) -> dict[str, float]:
    """Score the validation split.

    Args:
        batch_size: sequences at a time; it does not change the result.
        precision: 'fp32', 'bf16' or 'fp16'.
        before_batch: called before each batch; what it raises ends the scoring.
        metrics: makes those to score by.

    Returns:
        the value of each metric by its name, such as val_loss_nats; val_tokens, how many were scored.
    """
    device = model.embedding.weight.device
    chosen, scored = metrics(task), 0
    summing: dict[tuple[object, str], Metric] = {}
    for metric in chosen:  # those that sum alike share their sums
        metric.sums = summing.setdefault((type(metric).update, repr(metric.options)), metric).sums
    was_training = model.training
    model.eval()
    try:
        for batch in task.validation_batches(batch_size):
            before_batch()
            scored += int((batch.targets != IGNORE).sum())
            batch = to_device(batch, device)
            with autocast(precision, device):
                logits = logits_of(model, batch)
            for metric in summing.values():
                metric.update(logits, batch)
    finally:
        model.train(was_training)
    return {**{metric.name: float(metric.value()) for metric in chosen}, "val_tokens": scored}
