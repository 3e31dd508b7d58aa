"""Wrong arguments of the public surface: one `RequestError` that names the argument, never whatever torch or Python says."""

from __future__ import annotations

import copy
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
NOT_CACHED = {
    "batch_size": [*NOT_WHOLE, -1, None],
    "max_tokens": [*NOT_WHOLE, 0, None],
    "device": NOT_DEVICE,
    "dtype": NOT_DTYPE,
}


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
    "Mask.dense": (
        Mask().dense,
        {"n_queries": 4, "n_keys": 4},
        {"n_queries": NOT_WHOLE, "n_keys": NOT_WHOLE, "device": NOT_DEVICE},
    ),
    "register": (
        lambda name, cls: attnzoo.register(name)(cls),
        {"name": "mine", "cls": type(attn)},
        {"name": [*NOT_TEXT, ""], "cls": [None, "sdpa", int, attn]},
    ),
    "why_not": (
        attnzoo.why_not,
        {"name": "sdpa"},
        {
            "name": [*NOT_TEXT, "sdpaa"],
            "device": [d for d in NOT_DEVICE if d != "cuda:99"],
            "dtype": ["float32", float, 3, None],
            "mask": [None, "causal", ARRAY],
            "n_heads": [*NOT_WHOLE, 0, None],
            "n_kv_heads": [*NOT_WHOLE, 0],
            "head_dim": [*NOT_WHOLE, 0, None],
            "training": NOT_FLAG,
            "bias": NOT_FLAG,
            "bias_gradient": NOT_FLAG,
            "alibi": NOT_FLAG,
            "dropout": [*NOT_NUMBER, 1.0, -0.1],
            "kernel": [3, ["flash"]],
            "windw": [3],
        },
    ),
    "build": (
        attnzoo.build,
        {"name": "sdpa", "n_heads": 2, "head_dim": 8},
        {
            "name": NOT_TEXT,
            "n_heads": [*NOT_WHOLE, 0, None],
            "n_kv_heads": [*NOT_WHOLE, 0],
            "head_dim": [*NOT_WHOLE, 0, None],
            "d_model": [*NOT_WHOLE, 0],
            "dropout": [*NOT_NUMBER, 1.0, -0.1],
            "scale": [s for s in NOT_NUMBER if s is not None],
        },
    ),
    "forward": (attn, TENSORS, NOT_ATTENDED),
    "reference": (attn.reference, TENSORS, NOT_ATTENDED),
    "extend": (
        lambda **given: attn.extend(**{"cache": attn.new_cache(1, 4), **given}),
        TENSORS,
        {**NOT_ATTENDED, "cache": [None, 3, {}, ARRAY]},
    ),
    "new_cache": (attn.new_cache, {"batch_size": 1, "max_tokens": 4}, {**NOT_CACHED, "value_dim": NOT_WHOLE}),
    "model.new_cache": (model.new_cache, {"batch_size": 1, "max_tokens": 4}, NOT_CACHED),
    "model": (
        model,
        {"tokens": tokens},
        {
            "tokens": [*NOT_TENSOR, tokens.float(), tokens.bool(), tokens - 1, tokens + 256, tokens[0]],
            "key_padding": [*NOT_TENSOR, torch.ones(1, 4)],
            "documents": [*NOT_TENSOR, IDS],
            "cache": [3, {}, attn.new_cache(1, 4)],
        },
    ),
    "generate": (
        model.generate,
        {"tokens": tokens, "max_new_tokens": 1},
        {
            "tokens": NOT_TENSOR,
            "max_new_tokens": [*NOT_WHOLE, 0, None],
            "temperature": [*NOT_NUMBER, -1],
            "seed": NOT_WHOLE,
            "top_k": [*NOT_WHOLE, 0],
            "top_p": [p for p in [*NOT_NUMBER, 0, 1.5] if p is not None],
            "use_cache": [*NOT_FLAG, None],
            "key_padding": NOT_TENSOR,
            "cache": [3, {}, attn.new_cache(1, 4)],
        },
    ),
    "compose": (
        attnzoo.compose,
        {"kind": "train"},
        {"kind": [*NOT_TEXT, "trian"], "overrides": ["seed=1", [3], 3, None], "folders": ["conf", [3], 3, None]},
    ),
    "build_model": (
        attnzoo.build_model,
        {"cfg": cfg},
        {"cfg": [None, "train", {}, cfg.model], "vocab_size": [*NOT_WHOLE, 0]},
    ),
    "train": (attnzoo.train, {}, {"cfg": [None, "train", {}, cfg.model]}),
    "compare": (attnzoo.compare, {}, {"cfg": [None, "compare", {}, cfg]}),
    "check": (
        check_only,
        {},
        {
            "what": [3, None, "sdpaa", int],
            "device": NOT_DEVICE,
            "dtype": NOT_DTYPE,
            "quick": [*NOT_FLAG, None],
            "shrink": [*NOT_FLAG, None],
            "only": ["growth", [3], 3, None],
        },
    ),
    "check of a model": (
        lambda **given: attnzoo.check(model, quick=True, **given),
        {},
        {
            "vocab_size": [*NOT_WHOLE, 0, 1],
            "n_tokens": [*NOT_WHOLE, 1, None],
            "seed": [*NOT_WHOLE, None],
            "device": NOT_DEVICE,
            "task": ["text", 3],
            "make_model": ["model", model.cfg],
            "vocab": [3],
        },
    ),
    "leak_test": (
        attnzoo.leak_test,
        {"logits_fn": model, "vocab_size": 256, "n_tokens": 4},
        {
            "logits_fn": [None, "model", 3],
            "vocab_size": [*NOT_WHOLE, 1, None],
            "n_tokens": [*NOT_WHOLE, 1, None],
            "seed": [*NOT_WHOLE, None],
            "device": NOT_DEVICE,
            "exact": NOT_FLAG,
            "cuts": ["a", 3, [], [1.5], [9], ["a"]],
            "batch_size": [*NOT_WHOLE, 0, None],
            "model": ["a", 3, torch.relu],
        },
    ),
    "export": (
        attnzoo.export,
        {"model": model, "folder": "unused"},
        {"model": [None, "a", attn], "folder": [3, None, [], ""], "tokenizer": ["bytes", 3]},
    ),
    "load": (attnzoo.load, {}, {"folder": [3, None, [], ""]}),
    "export_llama": (
        attnzoo.export_llama,
        {"model": model, "folder": "unused"},
        {"model": [None, "a", attn], "folder": [3, None, [], ""], "tokenizer": ["bytes", 3]},
    ),
    "from_llama": (attnzoo.from_llama, {"source": "nowhere"}, {"source": [3, None, [], ""], "attention": [3, None]}),
}


@pytest.mark.parametrize(("label", "name"), [(label, name) for label, row in SURFACE.items() for name in row[2]])
def test_a_wrong_argument_is_named(label, name):
    call, right, wrong = SURFACE[label]
    for value in wrong[name]:
        with pytest.raises(RequestError) as caught:
            call(**{**right, name: value})
        assert name in str(caught.value) or repr(value) in str(caught.value), f"{name}={value!r}: {caught.value}"


@pytest.mark.parametrize("start", [attnzoo.build_model, attnzoo.train])
def test_a_configuration_changed_by_hand(start):
    wrong = copy.deepcopy(cfg)
    wrong.model.n_layers, wrong.model.dropout, wrong.positions.options = "two", None, {"base": [1]}
    with pytest.raises(RequestError) as caught:
        start(wrong)
    assert {reason.partition("=")[0] for reason in caught.value.reasons} == {
        "model.n_layers", "model.dropout", "positions.base",
    }  # fmt: skip
    wrong = copy.deepcopy(cfg)
    wrong.model.n_layers, wrong.model.d_model, wrong.model.norm = -1, 0, "rsm"
    with pytest.raises(RequestError, match="did you mean rms") as caught:
        start(wrong)
    assert len(caught.value.reasons) == 3


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


@pytest.mark.parametrize("value", [10**22, 2**32, -1])
def test_a_seed_is_what_every_generator_takes(value):
    for call in (
        lambda: model.generate(tokens, 1, temperature=1.0, seed=value),
        lambda: attnzoo.leak_test(model, vocab_size=256, n_tokens=4, seed=value),
    ):
        with pytest.raises(RequestError, match="seed="):
            call()
    assert arguments.seed("seed", 2**32 - 1) == []


def test_numbers_too_large_for_what_they_count():
    with pytest.raises(RequestError, match="max_new_tokens=99999999999: must be at most 2147483647"):
        model.generate(tokens, 99999999999)
    with pytest.raises(RequestError, match="temperature"):
        model.generate(tokens, 1, temperature=10**400)
    with pytest.raises(RequestError, match="n_heads=int: must be at most"):
        attnzoo.build("sdpa", n_heads=10**5000, head_dim=4)
