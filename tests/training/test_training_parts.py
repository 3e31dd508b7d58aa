"""Small parts by themselves: when something is due, the mean of the validation, random states."""

from __future__ import annotations

import random

import pytest
import torch
from helpers import tiny

from attnzoo.model import build_model
from attnzoo.tasks import Batch
from attnzoo.training.callbacks import due
from attnzoo.training.checkpoints import RandomState
from attnzoo.training.evaluate import evaluate


def test_due_is_every_nth_step_and_the_last():
    assert [step for step in range(1, 8) if due(step, 3, 7)] == [3, 6, 7]
    assert [step for step in range(1, 8) if due(step, 0, 7)] == [7]


class Uneven:
    """Two batches that score 1 and 15 tokens."""

    bytes_per_token, chance = None, 0.125

    def batches(self):
        rows = torch.randint(8, (4, 9), generator=torch.Generator().manual_seed(0))
        targets = rows[:, 1:].clone()
        targets[:2].view(-1)[1:] = -100
        targets[2:].view(-1)[15:] = -100
        return [Batch(rows[i : i + 2, :-1].contiguous(), targets[i : i + 2]) for i in (0, 2)]

    def validation_batches(self, batch_size):
        return self.batches()


def test_validation_is_the_mean_over_scored_tokens_without_dropout():
    task, model = Uneven(), build_model(tiny(model={"dropout": 0.5}), 8).train()
    found = evaluate(model, task, 2)
    losses, right = [], 0
    with torch.no_grad():
        for batch in task.batches():
            logits = model.eval()(batch.tokens)
            for row, targets in zip(logits.double().log_softmax(-1), batch.targets, strict=True):
                losses += [-float(p[t]) for p, t in zip(row, targets, strict=True) if t >= 0]
                right += sum(int(p.argmax() == t) for p, t in zip(row, targets, strict=True) if t >= 0)
    assert found["val_tokens"] == len(losses) == 16
    assert found["val_loss_nats"] == pytest.approx(sum(losses) / 16, rel=1e-5)  # float32 logits
    assert found["val_accuracy"] == right / 16


def test_random_states_are_restored_before_the_first_step():
    with torch.random.fork_rng(devices=[]):
        callback = RandomState(3)
        callback.on_train_batch_start()
        kept = callback.state_dict()
        expected = torch.rand(3), random.random()
        assert torch.equal(callback.state_dict()["torch"], kept["torch"])  # within a step: that of its beginning
        again = RandomState(3)
        again.load_state_dict(kept)
        again.on_train_start(None, None)
        assert torch.equal(torch.rand(3), expected[0])
        assert random.random() == expected[1]
