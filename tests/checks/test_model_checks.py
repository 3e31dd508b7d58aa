"""Each check of `check_model` turns red on the bug it is for, and on nothing else; right models pass."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attnzoo.model.lm as lm_module
from attnzoo import CausalLM, RequestError
from attnzoo.checks.model import check_model
from attnzoo.checks.report import PASSED, REFUSED, SKIPPED
from attnzoo.contract import KVCache
from attnzoo.data.config import DataConfig
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig
from attnzoo.shapes import IGNORE
from attnzoo.tasks.base import Batch
from attnzoo.tasks.build import build_task
from attnzoo.tasks.config import TaskConfig

V = 23
SIZES = {"n_layers": 2, "d_model": 32, "n_heads": 4}


def lm(name="sdpa", positions="rope", **options) -> CausalLM:
    return assemble(ModelConfig(**SIZES), AttentionConfig(name, options), PositionsConfig(name=positions), V, 0)


def check(model, **how):
    return check_model(model, **({"vocab_size": V, "n_tokens": 9, "quick": True} | how))


def failed(model, **how):
    """Names of the failed checks, the leak tests aside (see test_leak.py)."""
    return [name for name in check(model, **how).failed_checks() if not name.startswith("leak_")]


@pytest.fixture(scope="module")
def text():
    return build_task(TaskConfig("text", 32, options={"validation_tokens": 500}), DataConfig(), 0)


def test_a_right_model_passes_every_check_with_the_canary(text):
    model = assemble(ModelConfig(**SIZES), AttentionConfig("sdpa", {}), PositionsConfig(), 256, 0)
    report = check_model(model, task=text, n_tokens=9)
    assert report.passed, report
    refused = {r.check for r in report.results if r.status == REFUSED}
    assert refused == {"model_second_derivative"}, report  # torch's fused kernel has none on a CPU, and says so
    assert {r.status for r in report.results} == {PASSED, REFUSED}, report
    assert {"label_shift", "splits_disjoint", "leak_entropy_canary"} <= {r.check for r in report.results}


@pytest.mark.parametrize(
    ("name", "positions", "options"),
    [
        ("exact", "alibi", {}),
        ("sliding_window", "rope", {"window": 5}),
        ("block_sparse", "sinusoidal", {"block": 4}),
        ("linear", "learned", {"chunk": 8}),
        ("gqa", "none", {}),
    ],
)
def test_every_backend_and_position_scheme_passes(name, positions, options):
    report = check(lm(name, positions, **options))
    assert report.passed, report


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("exact", {"short_conv": 3, "output_gate": "headwise", "head_norm": True}),
        ("exact", {"short_conv": 2, "qk_norm": False, "scale": "log_n", "tie_embeddings": False}),
        ("sdpa", {"projection": "mla", "norm": "layer", "mlp": "gelu"}),
        ("linear", {"attention_pattern": ["linear", "sdpa"], "mlp": "geglu"}),
    ],
)
def test_every_part_of_a_layer_passes(name, layers):
    model = assemble(ModelConfig(**SIZES, **layers), AttentionConfig(name, {}), PositionsConfig(), V, 0)
    report = check(model)
    assert report.passed, report
    assert {r.check for r in report.results if r.status == PASSED} >= {"model_gradients", "full_cache", "generation"}


def test_gradients_of_a_function_are_skipped_with_the_reason():
    model = lm()
    results = {r.check: r for r in check(lambda tokens: model(tokens)).results}
    assert results["model_gradients"].status == SKIPPED
    assert "pass the module itself" in results["model_gradients"].detail


def test_blocks_counted_from_the_first_token_are_said_to_be():
    model = lm("block_sparse", block=4)
    results = {r.check: r for r in check(model).results}
    assert results["padded_generation"].status == SKIPPED
    assert "counts its blocks from the first token" in results["padded_generation"].detail
    assert results["documents_isolated"].passed  # what a neighbour holds must not matter all the same


def test_in_bfloat16_generation_is_skipped_with_the_reason():
    report = check(lm().to(torch.bfloat16))
    assert report.passed, report
    skipped = {r.check: r.detail for r in report.results if r.status == SKIPPED}
    assert "rounding" in skipped["generation"]


def test_any_callable_is_checked_as_far_as_it_goes():
    model = nn.Sequential(nn.Embedding(V, 8), nn.Linear(8, V))
    report = check(model)
    assert report.passed
    reasons = {r.check: r.detail for r in report.results if r.status == SKIPPED}
    assert reasons["left_padding"] == "the model takes no key_padding"
    assert reasons["tied_weights"] == "the head has weights of its own"
    assert reasons["generation"] == "the model has no generate"
    assert reasons["label_shift"] == "no task was given"
    assert all(reasons.values())
    assert check(lambda t: model(t)).passed


def test_a_wrong_request_names_every_fault():
    with pytest.raises(RequestError) as error:
        check_model(3)
    assert len(error.value.reasons) == 2


def test_the_model_is_left_as_it_was():
    model = lm()
    before = copy.deepcopy(model.state_dict())
    check(model.train(), quick=False)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# -- planted bugs ------------------------------------------------------------------------------------------------------


def test_loss_as_a_mean_of_row_means_is_caught():
    class ByRow(CausalLM):
        @staticmethod
        def loss(logits, targets):
            rows = [
                F.cross_entropy(row.float(), t, ignore_index=IGNORE) for row, t in zip(logits, targets, strict=True)
            ]
            return torch.stack(rows).mean()

    model = lm()
    model.__class__ = ByRow
    report = check(model)
    assert report.failed_checks() == ["loss_over_tokens"]
    assert "the mean of the rows' means" in str(report)


def test_padding_in_the_loss_is_caught():
    class Scored(CausalLM):
        @staticmethod
        def loss(logits, targets):
            return F.cross_entropy(logits.float().flatten(0, 1), targets.clamp(min=0).flatten())

    model = lm()
    model.__class__ = Scored
    assert failed(model) == ["loss_over_tokens"]


def test_a_tie_made_of_two_parameters_is_caught():
    model = lm()
    model.extra = nn.Parameter(model.embedding.weight.data)  # one memory, two parameters: stepped twice
    report = check(model)
    assert report.failed_checks() == ["tied_weights"]
    assert "two parameters over one memory" in str(report)


def test_a_tied_weight_counted_twice_is_caught(monkeypatch):
    model, right = lm(), lm().parameter_count()
    monkeypatch.setattr(CausalLM, "parameter_count", lambda self: right + self.embedding.weight.numel())
    assert failed(model) == ["tied_weights"]


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_that_is_not_what_it_is_declared_is_caught(tied):
    cfg = ModelConfig(**SIZES, tie_embeddings=False)
    model = assemble(cfg, AttentionConfig("sdpa", {}), PositionsConfig(), V, 0)
    if tied:
        model.head.weight = model.embedding.weight
    else:
        assert check(model).passed
        model.cfg = replace(model.cfg, tie_embeddings=True)
    assert failed(model) == ["tied_weights"]


def forward_with(monkeypatch, change):
    """Run the model's forward on arguments changed by ``change(kwargs)``."""
    forward = CausalLM.forward

    def changed(self, tokens, key_padding=None, documents=None, cache=None):
        kwargs = {"key_padding": key_padding, "documents": documents, "cache": cache}
        change(kwargs)
        return forward(self, tokens, **kwargs)

    monkeypatch.setattr(CausalLM, "forward", changed)


def test_ignored_padding_is_caught(monkeypatch):
    forward_with(monkeypatch, lambda how: how.update(key_padding=None))
    assert failed(lm()) == ["left_padding", "padded_generation"]  # causality alone hides pads on the right


def test_left_padding_that_shifts_absolute_positions_is_caught(monkeypatch):
    monkeypatch.setattr(lm_module, "position_ids", lambda start, n, mask, device: torch.arange(start, start + n)[None])
    assert "left_padding" in failed(lm(positions="learned"))


def test_ignored_documents_are_caught(monkeypatch):
    forward_with(monkeypatch, lambda how: how.update(documents=None))
    assert failed(lm()) == ["documents_isolated"]


def test_documents_with_reset_positions_alone_are_caught(monkeypatch):
    """Resetting positions does not isolate."""
    right = lm_module.Mask
    monkeypatch.setattr(
        lm_module, "Mask", lambda key_padding, documents: right(key_padding=key_padding, documents=documents)
    )
    model = lm("exact")
    for attention in model.attention_modules():
        attend = attention.attend
        monkeypatch.setattr(
            attention, "attend", lambda q, k, v, mask, bias, x, attend=attend: attend(q, k, v, right(), bias, x)
        )
    assert "documents_isolated" in failed(model)


def test_decoding_at_position_zero_is_caught(monkeypatch):
    right = lm_module.position_ids
    monkeypatch.setattr(
        lm_module,
        "position_ids",
        lambda start, n, mask, device: right(0, n, mask, device) if mask.static else right(start, n, mask, device),
    )
    # greedy and sampled tokens may or may not differ; the positions do
    assert "decode_positions" in failed(lm())


def test_a_cache_that_wraps_in_silence_is_caught(monkeypatch):
    monkeypatch.setattr(KVCache, "max_tokens", property(lambda self: 10**6))
    append = KVCache.append

    def wrapping(self, k, v):
        room = self.keys.shape[2] - self.length
        return append(self, k[:, :, :room], v[:, :, :room])

    monkeypatch.setattr(KVCache, "append", wrapping)
    assert "full_cache" in failed(lm("exact"))


def test_rows_that_mix_are_caught(monkeypatch):
    forward = CausalLM.forward
    monkeypatch.setattr(
        CausalLM, "forward", lambda self, *a, **k: (y := forward(self, *a, **k)) + y.mean(0, keepdim=True)
    )
    assert "batch_independence" in failed(lm())


def test_generation_that_changes_with_the_cache_is_caught(monkeypatch):
    model = lm()
    generate = CausalLM.generate
    monkeypatch.setattr(
        CausalLM,
        "generate",
        lambda self, *a, use_cache=True, **k: (generate(self, *a, use_cache=use_cache, **k) + use_cache) % V,
    )
    assert "generation" in failed(model)


class Shifted:
    """The text task with its targets shifted by another number of steps."""

    def __init__(self, task, by):
        self.task, self.by = task, by
        self.vocab_size, self.corpus = task.vocab_size, task.corpus

    def _wrong(self, batch):
        targets = (
            batch.tokens if self.by == 0 else F.pad(batch.targets[:, self.by - 1 :], (0, self.by - 1), value=IGNORE)
        )
        return Batch(batch.tokens, targets)

    def train_batch(self, step, batch_size):
        return self._wrong(self.task.train_batch(step, batch_size))

    def validation_batches(self, batch_size):
        return map(self._wrong, self.task.validation_batches(batch_size))


@pytest.mark.parametrize(("by", "said"), [(0, "not shifted"), (2, "shifted twice")])
def test_labels_shifted_wrongly_are_caught(text, by, said):
    report = check(lm(), task=Shifted(text, by))
    assert report.failed_checks() == ["label_shift"]
    assert said in str(report)


def test_a_training_row_in_the_validation_set_is_caught(text):
    class Leaky(Shifted):
        def validation_batches(self, batch_size):
            yield self.train_batch(3, batch_size)

    assert failed(lm(), task=Leaky(text, 1)) == ["splits_disjoint"]


def test_a_leak_turns_the_leak_checks_red_and_a_refusal_is_no_failure():
    model = lm("exact")
    for attention in model.attention_modules():
        attention.attend = lambda q, k, v, *_: F.scaled_dot_product_attention(q, k, v)
    report = check(model)
    assert {"leak_suffix_perturbation", "leak_gradient_probe"} <= set(report.failed_checks())
    assert "logit 0 saw token 1" in str(report)


def test_what_a_backend_refuses_is_reported_as_refused(monkeypatch):
    from attnzoo.backends.sdpa import SDPA
    from attnzoo.contract import Capabilities

    monkeypatch.setattr(SDPA, "capabilities", Capabilities(masks=frozenset({"key_padding"})))
    report = check(lm("sdpa"))
    assert report.passed, report
    (result,) = [r for r in report.results if r.check == "documents_isolated"]
    assert result.status == REFUSED
    assert "'documents'" in result.detail


def test_a_kink_in_the_way_of_one_direction_is_no_wrong_second_derivative(monkeypatch):
    """A rule whose slope has kinks fails along one direction of many; what is wrong fails along every one."""
    from attnzoo.checks import model_gradients as checks
    from attnzoo.checks.compare import Failed
    from attnzoo.checks.model_properties import Model

    torch.manual_seed(0)
    fn = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5))
    real, wrong = checks._compared, []

    def compared(gradient, way, at):
        found = real(gradient, way, at)
        return (found[0] + 1.0, *found[1:]) if len(wrong) < due and not wrong.append(1) else found

    monkeypatch.setattr(checks, "_compared", compared)
    for due in (1, 6):
        wrong.clear()
        subject = Model(fn, 5, torch.device("cpu"), torch.Generator().manual_seed(0))
        if due == 1:
            assert checks.model_second_derivative(subject)
        else:
            with pytest.raises(Failed):
                checks.model_second_derivative(subject)
