"""The compiled decoding step: the tokens of the eager one, one graph for all lengths, and what cannot be compiled said."""

import copy
import gc
import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from attnzoo.errors import Refused, RequestError
from attnzoo.model import compiled


@pytest.fixture
def graphs(monkeypatch):
    """Steps are traced and run as traced, without generating code; counts the graphs."""
    counter = CompileCounter()
    monkeypatch.setattr(compiled, "BACKEND", counter)
    torch._dynamo.reset()
    yield counter
    torch._dynamo.reset()


BACKENDS = {
    "sdpa": {}, "gqa": {"n_kv_heads": 2}, "mqa": {"n_kv_heads": 1}, "sliding_window": {}, "linear": {}, "mla": {},
    "differential": {}, "deltanet": {}, "exact": {},
}  # fmt: skip


@pytest.mark.parametrize("name", BACKENDS)
def test_the_eager_tokens_from_one_graph(make_model, graphs, name):
    model, prompt = make_model(name, **BACKENDS[name]), torch.randint(50, (2, 7))
    assert torch.equal(model.generate(prompt, 12, compiled=True), model.generate(prompt, 12))
    assert graphs.frame_count == 1


def test_another_batch_and_another_room_share_a_graph_in_time(make_model, graphs):
    """A graph each for the first two sizes of a batch: torch then leaves them open."""
    model = make_model()
    for batch, new in ((2, 5), (3, 5), (4, 9), (5, 20), (2, 30)):
        prompt = torch.randint(50, (batch, 7))
        assert torch.equal(model.generate(prompt, new, compiled=True), model.generate(prompt, new))
    assert graphs.frame_count <= 2


def test_padding_grows_without_a_new_graph(make_model, graphs):
    model, prompt = make_model(), torch.randint(50, (2, 8))
    real = torch.arange(8)[None] >= torch.tensor([[3], [0]])
    found = model.generate(prompt, 12, key_padding=real, compiled=True)
    assert torch.equal(found, model.generate(prompt, 12, key_padding=real))
    assert graphs.frame_count == 1


def test_a_prompt_of_one_token(make_model, graphs):
    model, prompt = make_model(), torch.randint(50, (2, 1))
    assert torch.equal(model.generate(prompt, 9, compiled=True), model.generate(prompt, 9))
    assert graphs.frame_count == 1


def test_a_filled_cache_is_continued_by_the_same_graph(make_model, graphs):
    model, prompt = make_model(), torch.randint(50, (1, 7))
    for room in (12, 12):
        cache = model.new_cache(1, room)
        with torch.no_grad():
            model(prompt[:, :-1], cache=cache)
        assert torch.equal(model.generate(prompt, 5, cache=cache, compiled=True), model.generate(prompt, 5))
    assert graphs.frame_count == 1


def test_changed_weights_count(make_model, graphs):
    model, prompt = make_model(), torch.randint(50, (1, 6))
    before = model.generate(prompt, 20, compiled=True)
    with torch.no_grad():
        model.blocks[0].mlp.down.weight.neg_()
    after = model.generate(prompt, 20, compiled=True)
    assert torch.equal(after, model.generate(prompt, 20))
    assert not torch.equal(after, before)
    assert graphs.frame_count == 1


def test_models_have_graphs_of_their_own(make_model, graphs):
    """Nine models of one class: torch allows eight graphs of a function, and goes back to eager code after them."""
    for width in range(1, 10):
        model, prompt = make_model(d_model=16 * width, n_layers=1), torch.randint(50, (1, 5))
        assert torch.equal(model.generate(prompt, 3, compiled=True), model.generate(prompt, 3))
    assert graphs.frame_count == 9


def test_a_model_is_not_kept_alive_and_can_be_copied(make_model, graphs):
    model, prompt = make_model(), torch.randint(50, (1, 5))
    expected = model.generate(prompt, 5, compiled=True)
    other, held = copy.deepcopy(model), len(compiled._STEPS)
    del model
    gc.collect()
    assert len(compiled._STEPS) == held - 1
    assert torch.equal(other.generate(prompt, 5, compiled=True), expected)


def test_the_kernel_that_ran_is_named_as_compiled(make_model, graphs):
    model = make_model()
    model.generate(torch.randint(50, (1, 5)), 4, compiled=True)
    assert model.kernel == "products, compiled"
    model.generate(torch.randint(50, (1, 5)), 4)
    assert model.kernel == "products"


def test_what_cannot_be_one_graph_is_refused_with_torchs_reason(make_model, graphs):
    model, prompt = make_model("block_sparse"), torch.randint(50, (1, 7))
    cache = model.new_cache(1, 12)
    with pytest.raises(Refused, match=r"generate without compiled=True\n.*assume_constant_result.*\. Cannot convert"):
        model.generate(prompt, 5, cache=cache, compiled=True)
    assert cache.length == 7  # the prompt; the token that was refused left nothing
    assert not model.training


def test_without_a_cache_nothing_is_compiled(make_model):
    with pytest.raises(RequestError, match="compiled=True needs the cache"):
        make_model().generate(torch.randint(50, (1, 5)), 4, use_cache=False, compiled=True)


@pytest.mark.parametrize("batch", [1, 2])
def test_generated_code_gives_the_eager_tokens(make_model, batch):
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("torch.compile needs a C++ compiler on a CPU, and there is none")
    torch._dynamo.reset()
    model, prompt = make_model(n_layers=1), torch.randint(50, (batch, 7))
    assert torch.equal(model.generate(prompt, 9, compiled=True), model.generate(prompt, 9))
    torch._dynamo.reset()


@pytest.mark.parametrize("batch", [1, 2])
def test_under_autocast_it_is_the_eager_step(make_model, graphs, batch):
    """A product of one row has a form that autocast would leave in float32."""
    model, prompt = make_model(), torch.randint(50, (batch, 7))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found = []
        for step in (compiled.decoding_step(model), model):
            cache = model.new_cache(batch, 12, dtype=torch.bfloat16)
            model(prompt, cache=cache)
            found.append(step(prompt[:, :1], cache=cache))
    assert found[0].dtype == found[1].dtype == torch.bfloat16
    # eight products one after the other are rounded, and between them compiling keeps digits that eager code rounds
    allowed = 8 * torch.finfo(torch.bfloat16).eps * found[1].abs().max()
    assert (found[0] - found[1]).abs().max() <= allowed
