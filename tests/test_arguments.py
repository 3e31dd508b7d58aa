"""Wrong arguments of the public surface: one `RequestError` that names the argument, never whatever torch or Python says."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import attnzoo
from attnzoo import Mask, RequestError, arguments
from attnzoo.errors import nearest

NAN, ARRAY, IDS = math.nan, np.zeros((1, 4), dtype=bool), [[0, 0, 1, 1]]
NOT_WHOLE = ["a", 1.5, NAN, True, [1], ARRAY, -1]
NOT_NUMBER = ["a", NAN, math.inf, True, [0.1], None]
NOT_FLAG = ["no", 1, ARRAY]
NOT_TEXT = [3, None, b"sdpa", ["sdpa"]]
NOT_TENSOR = ["a", 3, [[0.0]], ARRAY]
NOT_DEVICE = ["gpu", "cuda:99", "", 1.5, ["cpu"], True]
NOT_DTYPE = ["float32", float, 3, torch.int64]

model_settings = ["attention=sdpa", "model.n_layers=1", "model.d_model=16", "model.n_heads=2"]
cfg = attnzoo.compose("train", model_settings)
model = attnzoo.build_model(cfg)
attn = attnzoo.build("sdpa", n_heads=2, head_dim=8)
q, tokens = torch.zeros(1, 2, 4, 8), torch.zeros(1, 4, dtype=torch.long)
TENSORS = {"q": q, "k": q, "v": q}
NOT_ATTENDED = {
    **{name: [*NOT_TENSOR, None, q.long()] for name in "qkv"},
    "mask": [None, "causal", torch.ones(4, 4, dtype=torch.bool)],
    "bias": ["alibi", torch.zeros(2, 4, 4), ARRAY],
    "x": NOT_TENSOR,
}
NOT_CACHED = {"batch_size": [*NOT_WHOLE, 0, None], "max_tokens": [*NOT_WHOLE, 0, None], "device": NOT_DEVICE, "dtype": NOT_DTYPE}


def check_only(**given):
    return attnzoo.check(**{"what": "sdpa", "quick": True, "only": ["worked_numbers"], **given})


# label: the call, right arguments, and for each argument values that are wrong there
SURFACE = {
    "Mask": (
        Mask,
        {},
        {
            "causal": [*NOT_FLAG, None],
            "window": [*NOT_WHOLE, 0],
            "sinks": [*NOT_WHOLE, None],
            "prefix": [*NOT_WHOLE, None],
            "key_padding": [*NOT_TENSOR, torch.ones(1, 4)],
            "documents": [*NOT_TENSOR, IDS, torch.ones(1, 4)],
        },
    ),
    "Mask.dense": (Mask().dense, {"n_queries": 4, "n_keys": 4}, {"n_queries": NOT_WHOLE, "n_keys": NOT_WHOLE, "device": NOT_DEVICE}),
}


@pytest.mark.parametrize(("label", "name"), [(label, name) for label, row in SURFACE.items() for name in row[2]])
def test_a_wrong_argument_is_named(label, name):
    call, right, wrong = SURFACE[label]
    for value in wrong[name]:
        with pytest.raises(RequestError) as caught:
            call(**{**right, name: value})
        assert name in str(caught.value), f"{name}={value!r}: {caught.value}"


def test_what_counts_as_a_whole_number():
    assert Mask(window=np.int64(3)).window == 3
    assert arguments.whole("n", 3.0) == ["n=3.0: must be a whole number"]


def test_every_wrong_argument_at_once():
    with pytest.raises(RequestError) as caught:
        Mask(causal="no", window="a", sinks=NAN, prefix=-1, key_padding=[True], documents=ARRAY)
    assert len(caught.value.reasons) == 6


def test_a_message_says_what_would_be_right():
    assert arguments.device("device", "gpu") == [
        "device='gpu': must be a device such as 'cpu', 'cuda' or 'cuda:1', or a torch.device; did you mean 'cuda'?"
    ]
    assert "did you mean torch.float32?" in arguments.dtype("dtype", "flaot32")[0]
    assert arguments.texts("only", "growth") == ["only='growth': must be a list, such as ['growth']"]
    assert "torch.as_tensor makes one" in arguments.tensor("q", [1.0], "(B, H, T, D)")[0]
    assert arguments.shown(ARRAY) == "numpy.ndarray bool (1, 4)"
    assert arguments.shown(SimpleNamespace(a="x" * 99)) == "SimpleNamespace"


def test_a_gpu_is_cuda_and_no_cpu():
    assert nearest("gpu", ("auto", "cpu", "cuda")) == "cuda"
    assert nearest("gpu", ("cpu",)) == "cpu"
