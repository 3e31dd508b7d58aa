from __future__ import annotations

import math

import pytest

from attnzoo.measure.diverged import diverged


@pytest.mark.parametrize(
    ("quality", "said"),
    [
        ({"val_bits_per_byte": 49.7}, "diverged: 49.7 bits per byte"),
        ({"val_bits_per_byte": 8.3}, "diverged: 8.3 bits"),
        ({"val_bits_per_byte": 8.1}, None),  # an untrained model
        ({"val_bits_per_byte": 2.5, "val_loss_nats": 1.7, "uniform_loss_nats": math.log(256)}, None),
        ({"val_loss_nats": 2.4, "uniform_loss_nats": math.log(8)}, "diverged: validation loss 2.4 nats"),
        ({"val_loss_nats": 2.2, "uniform_loss_nats": math.log(8)}, None),
        ({"val_loss_nats": 90.0}, None),  # an older record does not say V
        ({"val_loss_nats": None, "val_bits_per_byte": None}, None),
        ({"val_loss_nats": True, "uniform_loss_nats": 0.1}, None),
        ("nonsense", None),
    ],
)
def test_what_ends_worse_than_guessing_has_diverged(quality, said):
    found = diverged({"status": "ok", "quality": quality})
    assert found is None if said is None else found.startswith(said)
    assert diverged({}) is None
