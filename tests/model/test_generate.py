"""Generation: with and without a cache, sampling settings, padding."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnzoo.errors import RequestError
from attnzoo.model.generate import _pick


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


def test_rows_padded_on_the_left_continue_as_if_alone(make_model):
    model, prompt = make_model("sdpa"), torch.randint(50, (1, 6))
    padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), prompt], 1)
    real = torch.arange(11)[None] >= 5
    assert torch.equal(model.generate(padded, 8, key_padding=real)[:, 5:], model.generate(prompt, 8))


def test_a_seed_repeats_and_another_does_not(make_model):
    model, prompt = make_model(), torch.randint(50, (2, 4))
    one = model.generate(prompt, 24, temperature=1.0, seed=0)
    assert torch.equal(one, model.generate(prompt, 24, temperature=1.0, seed=0))
    assert not torch.equal(one, model.generate(prompt, 24, temperature=1.0, seed=1))


def test_the_training_mode_is_restored(make_model):
    model = make_model().train()
    model.generate(torch.zeros(1, 2, dtype=torch.long), 1)
    assert model.training


def test_top_k_and_top_p_keep_the_likeliest():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    draw = torch.Generator().manual_seed(0)

    def drawn(**settings) -> set[int]:
        return {_pick(logits, 1.0, settings.get("top_k"), settings.get("top_p"), draw).item() for _ in range(300)}

    assert drawn() == {0, 1, 2, 3}
    assert drawn(top_k=2) == {0, 1}
    assert drawn(top_p=0.6) == {0, 1}  # 0.5 does not reach 0.6, 0.8 does
    assert drawn(top_p=0.1) == {0}
    assert drawn(top_k=3, top_p=0.9) == {0, 1, 2}


def test_settings_out_of_range_are_all_named(make_model):
    with pytest.raises(RequestError) as wrong:
        make_model().generate(torch.zeros(1, 2, dtype=torch.long), 0, temperature=-1.0, top_k=0, top_p=1.5)
    assert len(wrong.value.reasons) == 4
    with pytest.raises(RequestError) as wrong:
        make_model().generate([[1, 2]], 0, temperature=float("nan"), seed="a", top_k=1.5, top_p=0.0, use_cache=1)
    assert len(wrong.value.reasons) == 7  # types and ranges in one message


def test_a_cache_that_holds_the_beginning_is_continued(make_model):
    model, prompt = make_model("gqa"), torch.randint(50, (2, 9))
    cache = model.eval().new_cache(2, 20)
    with torch.no_grad():
        model(prompt[:, :5], cache=cache)
    assert torch.equal(model.generate(prompt, 6, cache=cache), model.generate(prompt, 6))
    assert cache.length == 14
    with pytest.raises(RequestError, match="holds 14 tokens already"):
        model.generate(prompt, 6, cache=cache)
