"""Generation: with and without a cache, sampling settings, padding."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnzoo import list_backends
from attnzoo.errors import RequestError
from attnzoo.model.generate import _pick, generate


@pytest.mark.parametrize("name", ["sdpa", "gqa", "sliding_window", "block_sparse", "linear", "flex"])
def test_with_and_without_a_cache_agree(make_model, name):
    model, prompt = make_model(name), torch.randint(50, (3, 7))
    with_cache = model.generate(prompt, 12)
    assert with_cache.shape == (3, 19)
    assert torch.equal(with_cache[:, :7], prompt)
    assert torch.equal(with_cache, model.generate(prompt, 12, use_cache=False))


class Operations(TorchDispatchMode):
    """How many there were that are not views."""

    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += not func.is_view
        return func(*args, **(kwargs or {}))


def test_a_token_takes_few_operations_a_layer(make_model):
    """What one token costs beside memory are its operations, whatever their size: 42 a layer once."""
    n = {}
    for layers in (1, 2):
        model = make_model(n_layers=layers, qk_norm=False)
        cache = model.new_cache(1, 9)
        with torch.no_grad():
            model(torch.zeros(1, 5, dtype=torch.long), cache=cache)
            with Operations() as counted:
                model(torch.zeros(1, 1, dtype=torch.long), cache=cache)
        n[layers] = counted.n
    assert n[2] - n[1] <= 36


@pytest.mark.parametrize("conv", [0, 3])
def test_rows_padded_on_the_left_continue_as_if_alone(make_model, conv):
    model, prompt = make_model("sdpa", short_conv=conv), torch.randint(50, (1, 6))
    padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), prompt], 1)
    real = torch.arange(11)[None] >= 5
    assert torch.equal(model.generate(padded, 8, key_padding=real)[:, 5:], model.generate(prompt, 8))


def test_a_seed_repeats_and_another_does_not(make_model):
    model, prompt = make_model(), torch.randint(50, (2, 4))
    one = model.generate(prompt, 24, temperature=1.0, seed=0)
    assert torch.equal(one, model.generate(prompt, 24, temperature=1.0, seed=0))
    assert not torch.equal(one, model.generate(prompt, 24, temperature=1.0, seed=1))


def test_without_a_seed_every_call_draws_anew(make_model):
    model, prompt = make_model(), torch.randint(50, (2, 4))
    one, other = (model.generate(prompt, 24, temperature=1.0) for _ in range(2))
    assert not torch.equal(one, other)


@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_dropped_and_the_mode_is_as_before(make_model, training):
    model, prompt = make_model(dropout=0.5), torch.randint(50, (2, 4))
    expected = model.generate(prompt, 8)
    model.train(training)
    assert torch.equal(model.generate(prompt, 8), expected)
    assert model.training == training
    with pytest.raises(RequestError, match="tokens must lie in"):
        model.generate(prompt + 50, 1)
    assert model.training == training


def drawn(logits: torch.Tensor, top_k=None, top_p=None, temperature=1.0) -> set[int]:
    """The tokens that 300 draws give: one of probability 0.05 stays away from all with 2 · 10^-7."""
    draw = torch.Generator().manual_seed(0)
    return {_pick(logits, temperature, top_k, top_p, draw).item() for _ in range(300)}


def test_top_k_and_top_p_keep_the_likeliest():
    logits = torch.tensor([[0.05, 0.5, 0.15, 0.3]]).log()
    assert drawn(logits) == {0, 1, 2, 3}
    assert drawn(logits, top_k=2) == {1, 3}
    assert drawn(logits, top_k=9) == {0, 1, 2, 3}
    assert drawn(logits, top_p=0.6) == {1, 3}  # 0.5 does not reach 0.6, 0.8 does
    assert drawn(logits, top_p=0.1) == {1}
    assert drawn(logits, top_k=3, top_p=0.9) == {1, 2, 3}
    assert drawn(logits, top_k=2, top_p=0.6) == {1}  # p is of what k left, as elsewhere: 0.5 of 0.8
    assert len(drawn(torch.zeros(1, 4), top_p=0.5)) == 2  # two quarters reach a half


def test_temperature_divides_the_logits():
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    assert drawn(logits, temperature=0.02) == {2}  # the next one has e^-50 of its probability
    assert drawn(logits, temperature=50.0) == {0, 1, 2}
    assert drawn(logits, temperature=0.02, top_p=0.5) == drawn(logits, temperature=50.0, top_p=0.3) == {2}
    assert len(drawn(logits, temperature=50.0, top_p=0.5)) == 2  # thirds


class Fixed(torch.nn.Module):
    """Logits that do not depend on the tokens."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, tokens, key_padding, cache):
        return self.logits


def test_half_precision_logits_are_sampled_in_float32():
    logits, prompt = torch.randn(256, 1, 500).bfloat16(), torch.zeros(256, 1, dtype=torch.long)
    how = {"temperature": 0.7, "top_p": 0.9, "seed": 0, "use_cache": False}
    half, whole = (generate(Fixed(each), prompt, 16, **how) for each in (logits, logits.float()))
    assert torch.equal(half, whole)


def test_settings_out_of_range_are_all_named(make_model):
    with pytest.raises(RequestError) as wrong:
        make_model().generate(torch.zeros(1, 2, dtype=torch.long), 0, temperature=-1.0, top_k=0, top_p=1.5)
    assert len(wrong.value.reasons) == 4
    with pytest.raises(RequestError) as wrong:
        make_model().generate([[1, 2]], 0, temperature=float("nan"), seed="a", top_k=1.5, top_p=0.0, use_cache=1)
    assert len(wrong.value.reasons) == 7  # types and ranges in one message
    make_model().generate(torch.zeros(1, 2, dtype=torch.long), 1, temperature=1.0, top_p=1.0)  # the end is in the range


def test_a_cache_that_holds_the_beginning_is_continued(make_model):
    model, prompt = make_model("gqa"), torch.randint(50, (2, 9))
    cache = model.eval().new_cache(2, 20)
    with torch.no_grad():
        model(prompt[:, :5], cache=cache)
    assert torch.equal(model.generate(prompt, 6, cache=cache), model.generate(prompt, 6))
    assert cache.length == 14
    with pytest.raises(RequestError, match="holds 14 tokens already"):
        model.generate(prompt, 6, cache=cache)
    full = model.new_cache(2, 20)
    model(prompt, cache=full)
    with pytest.raises(RequestError, match="holds 9 tokens already and the prompt has 9"):
        model.generate(prompt, 6, cache=full)
    with pytest.raises(RequestError, match="use_cache=False with a cache"):
        model.generate(prompt, 6, cache=model.new_cache(2, 20), use_cache=False)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("settings", [{}, {"short_conv": 3}, {"projection": "mla", "short_conv": 3}], ids=str)
def test_generation_under_autocast_has_one_cache_dtype(make_model, half, settings):
    """Reported as mamba#645 and torchtune#1349: weights in float32, keys in half precision."""
    model, prompt = make_model("sdpa", **settings), torch.randint(50, (2, 7))
    early = model.new_cache(2, 12)
    with torch.autocast("cpu", half):
        cached = model.generate(prompt, 5)
        assert torch.equal(cached, model.generate(prompt, 5, use_cache=False))
        assert model.new_cache(2, 12).nbytes * 2 == early.nbytes
        assert model.generate(prompt, 5, cache=early).shape == (2, 12)  # made outside: keys are raised to its type
    conv = early.layers[0].conv
    assert conv is None or conv.dtype == torch.float32


@pytest.mark.parametrize("name", sorted(set(list_backends()) - {"xformers"}))
@pytest.mark.parametrize("conv", [0, 3])
def test_every_backend_generates_under_autocast(make_model, name, conv):
    model, prompt = make_model(name, short_conv=conv, n_layers=1), torch.randint(50, (1, 6))
    with torch.autocast("cpu", torch.bfloat16):
        assert model.generate(prompt, 4).shape == (1, 10)


def test_a_cache_of_fewer_digits_is_refused_wherever_its_keys_lie(make_model):
    for name in ("sdpa", "based"):
        model = make_model(name)
        with pytest.raises(RequestError, match=r"the cache is torch\.bfloat16"):
            model.generate(torch.zeros(1, 4, dtype=torch.long), 2, cache=model.new_cache(1, 6, dtype=torch.bfloat16))
