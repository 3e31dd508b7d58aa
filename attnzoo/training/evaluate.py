"""Quality on the validation split, weighted by tokens: every scored token counts once, whatever its batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn import functional as F

from attnzoo.measure.arithmetic import autocast
from attnzoo.model import CausalLM
from attnzoo.shapes import IGNORE
from attnzoo.tasks import Batch, Task
from attnzoo.training.stream import to_device


def summed_loss(model, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross entropy in nats summed over the scored tokens, in float32, and the logits (B, T, V)."""
    logits = model(batch.tokens, key_padding=batch.key_padding, documents=batch.documents)
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
) -> dict[str, float]:
    """Score the validation split.

    Args:
        batch_size: sequences at a time; it does not change the result.
        precision: 'fp32', 'bf16' or 'fp16'.
        before_batch: called before each batch; what it raises ends the scoring.

    Returns:
        val_loss_nats (a token), val_perplexity, val_tokens; val_bits_per_byte where the task has bytes; val_accuracy
        where it has a chance level.
    """
    device = model.embedding.weight.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    right, scored = torch.zeros((), dtype=torch.int64, device=device), 0
    was_training = model.training
    model.eval()
    try:
        for batch in task.validation_batches(batch_size):
            before_batch()
            scored += int((batch.targets != IGNORE).sum())
            batch = to_device(batch, device)
            with autocast(precision, device):
                loss, logits = summed_loss(model, batch)
            total += loss.double()
            if task.chance is not None:
                right += (logits.argmax(-1) == batch.targets).sum()  # never equal where the target is IGNORE
    finally:
        model.train(was_training)
    nats = float(total) / max(scored, 1)
    result = {"val_loss_nats": nats, "val_perplexity": math.exp(min(nats, 700.0)), "val_tokens": scored}
    if task.bytes_per_token is not None:
        result["val_bits_per_byte"] = nats / math.log(2) / task.bytes_per_token
    if task.chance is not None:
        result["val_accuracy"] = int(right) / max(scored, 1)
    return result
