"""Models from elsewhere: right ones pass the whole of the model checks, a leak planted in one is found."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import attnzoo
from attnzoo import Attention
from attnzoo.checks.elsewhere import HuggingFace, adapted, load, vocabulary
from attnzoo.checks.report import PASSED, SKIPPED
from attnzoo.errors import RequestError

V = 40


def llama(**how):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=V, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, **how,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def gpt2():
    transformers = pytest.importorskip("transformers")
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=V, n_embd=32, n_layer=2, n_head=4))


@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_right_model_of_transformers_passes(make):
    report = attnzoo.check(make(), quick=True, n_tokens=20)
    assert report.passed, report
    status = {result.check: result.status for result in report.results}
    skipped = {name for name, found in status.items() if found == SKIPPED}
    assert skipped == {"loss_over_tokens", "documents_isolated", "label_shift", "splits_disjoint"} | (
        {"tied_weights"} if make is llama else set()  # its head has weights of its own
    )
    for name in ("left_padding", "decode_positions", "full_cache", "padded_generation", "leak_decoding"):
        assert status[name] == PASSED


def test_an_attention_without_its_causal_mask_is_found():
    model = llama()
    model.model.layers[1].self_attn.is_causal = False
    failed = {result.check for result in attnzoo.check(model, quick=True, n_tokens=20).failures}
    assert {"leak_suffix_perturbation", "leak_gradient_probe"} <= failed


@torch.no_grad()
def test_the_adapter_adds_nothing():
    model = llama().eval()
    tokens = torch.arange(12).view(2, 6)
    wrapped = adapted(model)
    assert isinstance(wrapped, HuggingFace)
    assert wrapped.vocab_size == V
    assert torch.equal(wrapped(tokens), model(tokens).logits)
    cache = wrapped.new_cache(2, 7)
    assert cache.nbytes == 2 * 2 * 2 * 2 * 7 * 8 * 4  # k and v, L, B, G, T, D, bytes
    wrapped(tokens, cache=cache)
    with pytest.raises(RequestError, match="8 tokens into 7"):
        wrapped(tokens[:, :2], cache=cache)
    assert cache.length == 6
    assert wrapped.generate(tokens, 9, temperature=1.0, seed=3).shape == (2, 15)


def test_any_other_module_is_taken_as_it_is():
    plain = nn.Linear(2, 2)
    assert adapted(plain) is plain
    with pytest.raises(RequestError, match="vocab_size"):
        vocabulary(plain, "mine.py:make")
    with pytest.raises(RequestError, match="vocab_size must be given"):
        attnzoo.check(plain)
    with pytest.raises(RequestError, match="no dtype"):
        attnzoo.check(plain, dtype=torch.float64, vocab_size=2)


CODE = """
from dataclasses import dataclass
import attnzoo
from torch import nn
from attnzoo import Attention

@dataclass
class Sizes:
    n: int = 3

class Mine(nn.Module):
    vocab_size = Sizes().n

def make():
    return Mine()

made, attention, number = Mine(), attnzoo.build("exact", n_heads=1, head_dim=4), lambda: 3
"""


def test_what_a_file_names(tmp_path):
    file = tmp_path / "mine_elsewhere.py"
    file.write_text(CODE)
    for name in ("Mine", "make", "made"):
        assert vocabulary(load(f"{file}:{name}"), name) == 3
    assert load(f"{file}:Attention") is Attention
    assert load("attnzoo.backends.exact:Exact").name == "exact"
    assert load(f"{file}:attention").n_heads == 1
    for spec, said in (
        (f"{file}:mak", "did you mean 'make'"),
        (f"{file}:number", "gives int"),
        (f"{tmp_path}/none.py:x", "no such file"),
        ("no_such_package.models:x", "ModuleNotFoundError"),
    ):
        with pytest.raises(RequestError, match=said):
            load(spec)
    file.write_text("1 / 0")
    with pytest.raises(RequestError, match="cannot be imported: ZeroDivisionError"):
        load(f"{file}:x")
