"""Weights as one file: of another model they are refused, tied ones stand there once."""

from __future__ import annotations

import pytest
import torch

from attnzoo.errors import RequestError
from attnzoo.model.weights import load_weights, save_weights


def test_weights_of_another_model_are_named(tmp_path):
    save_weights(torch.nn.Linear(3, 2), tmp_path / "a.safetensors")
    with pytest.raises(RequestError, match="another model") as caught:
        load_weights(torch.nn.Linear(4, 2, bias=False), tmp_path / "a.safetensors")
    assert caught.value.reasons == ["bias is not in this model", "weight is (2, 3), expected (2, 4)"]


def test_tied_weights_are_saved_once(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(4, 3)
            self.head = torch.nn.Linear(3, 4, bias=False)
            self.head.weight = self.embedding.weight

    one, two = Tied(), Tied()
    save_weights(one, tmp_path / "t.safetensors")
    load_weights(two, tmp_path / "t.safetensors")
    assert torch.equal(one.head.weight, two.head.weight)
    assert two.head.weight is two.embedding.weight
