"""Decoding in fixed shapes: the tokens and logits of the ordinary one, one graph, the same memory at each step, refusals."""

import copy
import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from attnzoo.errors import Refused, RequestError
from attnzoo.model import compiled, static


@pytest.fixture
def graphs(monkeypatch):
    """Steps are traced and run as traced, without generating code; counts the graphs."""
    counter = CompileCounter()
    monkeypatch.setattr(compiled, "BACKEND", counter)
    torch._dynamo.reset()
    yield counter
    torch._dynamo.reset()


@pytest.fixture
def as_written(monkeypatch):
    """Steps run uncompiled: what they compute, in a tenth of the time."""
    monkeypatch.setattr(static, "one_graph", lambda function, backend, **how: function)


MODELS = {
    "sdpa": {}, "gqa": {"n_kv_heads": 2}, "mqa": {"n_kv_heads": 1}, "exact": {}, "softcap": {}, "sigmoid": {},
    "sink_logit": {}, "differential": {}, "retention": {}, "linear": {}, "gla": {}, "deltanet": {}, "mamba2": {}, "mla": {},
    "sdpa, projection": {"projection": "mla"}, "sdpa, short_conv": {"short_conv": 4}, "sdpa, scale": {"scale": "log_n"},
    "exact, positions": {"positions": "learned"}, "gqa, positions": {"positions": "sinusoidal"},
}  # fmt: skip


def padding(n_tokens):
    """Rows of which the first has three tokens less."""
    return torch.arange(n_tokens)[None] >= torch.tensor([[3], [0]])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("model", MODELS)
@torch.no_grad()
def test_the_logits_and_the_cache_of_ordinary_decoding(make_model, as_written, model, padded):
    """In float64, within the rounding of one sum over R slots in each of 2 layers, whose norms keep values of order 1."""
    lm, tokens = make_model(model.partition(",")[0], **MODELS[model]).double(), torch.randint(50, (2, 15))
    real = padding(15) if padded else None
    plain, fixed = (lm.new_cache(2, 32) for _ in range(2))
    for cache in (plain, fixed):
        lm(tokens[:, :7], key_padding=None if real is None else real[:, :7], cache=cache)
    steps = static.StaticDecoding(lm, fixed, 2, None if real is None else real[:, :7])
    for n in range(7, 15):
        expected = lm(tokens[:, n : n + 1], key_padding=None if real is None else real[:, : n + 1], cache=plain)
        found = steps(tokens[:, n : n + 1])
        assert (found - expected).abs().max() <= 32 * 64 * torch.finfo(torch.float64).eps * expected.abs().max(), n
    steps.close()
    assert fixed.length == plain.length == 15
    more = torch.randint(50, (2, 3))
    whole = None if real is None else torch.cat([real, torch.ones(2, 3, dtype=torch.bool)], 1)
    after = [lm(more, key_padding=whole, cache=cache) for cache in (plain, fixed)]  # the caches hold the same
    assert (after[0] - after[1]).abs().max() <= 32 * 64 * torch.finfo(torch.float64).eps * after[0].abs().max()


@pytest.mark.parametrize("name", ["sdpa", "gqa", "exact", "linear", "gla"])
def test_one_graph_for_all_steps_prompts_and_paddings(make_model, graphs, name):
    model = make_model(name)
    for n_prompt, new, real in ((7, 12, None), (20, 30, None), (9, 5, padding(9))):
        prompt = torch.randint(50, (2, n_prompt))
        found = model.generate(prompt, new, key_padding=real, compiled="static")
        assert torch.equal(found, model.generate(prompt, new, key_padding=real))
    assert graphs.frame_count == 1


@pytest.mark.parametrize(("name", "layer"), [("sdpa", {}), ("linear", {}), ("gqa", {"short_conv": 4})])
@torch.no_grad()
def test_a_step_reads_and_writes_where_the_last_one_did(make_model, graphs, name, layer):
    model, tokens = make_model(name, **layer), torch.randint(50, (2, 14))
    cache = model.new_cache(2, 16)
    model(tokens[:, :7], cache=cache)
    steps, seen = static.StaticDecoding(model, cache, 2, None), []
    for n in range(7, 14):
        steps(tokens[:, n : n + 1].clone())
        seen.append([(t.data_ptr(), t.shape, t.stride(), t.dtype) for t in steps.tensors()])
        assert steps.at.item() == n + 1
        assert steps.real.sum(1).tolist() == [n + 2] * 2  # and the last slot, for the token to come
    assert len(seen[0]) >= 3 + 2
    assert all(each == seen[0] for each in seen)
    assert graphs.frame_count == 1


def test_a_full_cache_is_filled_to_its_last_slot(make_model, graphs):
    model, prompt = make_model(), torch.randint(50, (2, 7))
    expected = model.generate(prompt, 6)
    cache = model.new_cache(2, 12)
    assert torch.equal(model.generate(prompt, 6, cache=cache, compiled="static"), expected)
    assert cache.length == 12
    assert torch.equal(model.generate(prompt, 1, compiled="static"), expected[:, :8])
    assert graphs.frame_count == 1


def test_a_graph_for_each_size_and_no_limit_of_them(make_model, graphs):
    """torch allows eight graphs of one function."""
    model = make_model(n_layers=1)
    for batch in range(1, 11):
        prompt = torch.randint(50, (batch, 5))
        assert torch.equal(model.generate(prompt, 3, compiled="static"), model.generate(prompt, 3))
    assert graphs.frame_count == 10


REFUSED = {
    "sliding_window": "sliding_window keeps a RingCache", "block_sparse": "block_sparse counts slots",
    "moba": "moba keeps a SummaryCache", "forgetting": "forgetting keeps a ForgetCache", "based": "based keeps a BasedCache",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_counts_slots_or_grows_is_refused_before_work_starts(make_model, monkeypatch, name):
    model = make_model(name)
    monkeypatch.setattr(type(model), "forward", None)
    with pytest.raises(Refused, match=f"cannot decode in fixed shapes; take compiled=True.*\n.*{REFUSED[name]}"):
        model.generate(torch.randint(50, (1, 5)), 3, compiled="static")


def test_all_reasons_at_once(make_model):
    model = make_model(positions="alibi")
    with pytest.raises(Refused, match=r"(?s)room for 6 tokens, and 11 are.*alibi positions count slots"):
        model.generate(torch.randint(50, (1, 5)), 7, cache=model.new_cache(1, 6), compiled="static")
    for wrong in ("dynamic", 1, None):
        with pytest.raises(RequestError, match=r"compiled=.*: must be True, False or 'static'"):
            model.generate(torch.randint(50, (1, 5)), 4, compiled=wrong)
    with pytest.raises(RequestError, match="compiled=static needs the cache"):
        model.generate(torch.randint(50, (1, 5)), 4, use_cache=False, compiled="static")


def test_cuda_graphs_are_asked_for_on_cuda_alone(make_model, monkeypatch):
    asked = []
    monkeypatch.setattr(static, "one_graph", lambda function, backend, **how: asked.append(how) or function)
    model, prompt = make_model(), torch.randint(50, (1, 5))
    model.generate(prompt, 3, compiled="static")
    assert asked == [{"dynamic": False}]


def test_a_copied_model_decodes_and_is_not_kept_alive(make_model, graphs):
    model, prompt = make_model(), torch.randint(50, (1, 5))
    expected = model.generate(prompt, 5, compiled="static")
    assert torch.equal(copy.deepcopy(model).generate(prompt, 5, compiled="static"), expected)


def test_generated_code_gives_the_eager_tokens(make_model):
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("torch.compile needs a C++ compiler on a CPU, and there is none")
    torch._dynamo.reset()
    model, prompt = make_model(n_layers=1), torch.randint(50, (2, 7))
    assert torch.equal(model.generate(prompt, 9, compiled="static"), model.generate(prompt, 9))
    torch._dynamo.reset()
