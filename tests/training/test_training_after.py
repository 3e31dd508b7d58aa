"""What is asked of a trained model: of which model, at which sizes, and when it is said to have passed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from helpers import tiny

from attnzoo.checks.leak import LeakReport
from attnzoo.checks.leak_subject import LeakTest
from attnzoo.model import build_model
from attnzoo.tasks import build_task
from attnzoo.training import after


def built(**changes):
    cfg = tiny(**{"batch_size": 3, "seed": 4, **changes})
    task = build_task(cfg.task, cfg.data, cfg.seed)
    return cfg, task, build_model(cfg, task.vocab_size)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_leaks_are_looked_for_in_this_model_as_it_was_trained(monkeypatch, precision):
    cfg, task, model = built(model={"n_layers": 3, "d_model": 32, "n_heads": 2})
    asked, canaries = [], []

    def leak_test(subject, **how):
        asked.append((subject, how))
        return LeakReport([LeakTest("suffix_perturbation", True)], "here")

    def canary(make, vocab_size, **how):
        with how.pop("within")():
            canaries.append((make(), vocab_size, how, torch.is_autocast_enabled("cpu")))
        return LeakTest(how.get("name", "entropy_canary"), len(canaries) < 2)

    monkeypatch.setattr(after, "leak_test", leak_test)
    monkeypatch.setattr(after, "entropy_canary", canary)
    record = after.leaks(model, task, cfg, "cpu", precision)
    ((subject, how),) = asked
    sizes = {"vocab_size": task.vocab_size, "n_tokens": 16, "seed": 4, "device": "cpu", "training_batch": 3}
    assert how == {**sizes, "model": model}  # as strict and with as many cuts as by default
    tokens, seen = torch.zeros(1, 3, dtype=torch.long), []
    model.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    subject(tokens)
    assert seen == [precision == "bf16"]
    (narrow, *first), (copied, *second) = canaries
    assert [block.attention.attention.name for block in narrow.blocks] == ["sdpa"] * 2
    assert copied is not model
    assert all(torch.equal(p, q) for p, q in zip(copied.parameters(), model.parameters(), strict=True))
    assert first == [task.vocab_size, {"n_tokens": 16, "seed": 4, "device": "cpu"}, precision == "bf16"]
    alphabet = second[1].pop("alphabet")
    counts = task.train_batch(0, 3).tokens.flatten().bincount(minlength=task.vocab_size)
    assert sorted(alphabet) == counts.nonzero().flatten().tolist()  # of what it has learned, nothing else
    assert counts[alphabet].diff().le(0).all()  # the most frequent first
    sizes = {"n_tokens": 16, "batch_size": 3, "steps": 12, "learning_rate": 1e-3, "seed": 4, "device": "cpu"}
    assert second[1] == {**sizes, "name": "entropy_canary_trained"}
    assert second[2] == (precision == "bf16")
    tests = [(t["name"], t["passed"]) for t in record["tests"]]
    assert tests == [("suffix_perturbation", True), ("entropy_canary", True), ("entropy_canary_trained", False)]
    assert record["passed"] is False


def test_decoding_is_compared_over_its_last_32_tokens():
    _, task, model = built()
    task = SimpleNamespace(validation_batches=lambda n: iter([SimpleNamespace(tokens=torch.arange(80)[None] % 8)]))
    fed = []
    model.register_forward_pre_hook(
        lambda m, args, kwargs: fed.append((args[0].shape[1], "cache" in kwargs)), with_kwargs=True
    )
    found = after.decoding(model, task, "cpu", "fp32")
    assert fed == [(80, False), (48, True), *[(1, True)] * 32]
    assert found["passed"] is True
    assert found["kernels"]["prefill"]
    assert found["kernels"]["decoding"]
    with torch.no_grad():
        largest = float(model(torch.arange(80)[None] % 8).abs().max())
    assert found["bound"] == pytest.approx(64 * 2**-23 * largest)


@pytest.mark.parametrize(("start", "factor", "passed"), [(79, 1.01, False), (49, 1.01, False), (49, 1.0, True)])
def test_a_decoded_token_that_differs_is_said(start, factor, passed):
    _, task, model = built()
    task = SimpleNamespace(validation_batches=lambda n: iter([SimpleNamespace(tokens=torch.arange(80)[None] % 8)]))

    def differs(module, args, kwargs, logits):
        cache = kwargs.get("cache")
        return logits * factor if cache is not None and cache.length == start + 1 else logits

    model.register_forward_hook(differs, with_kwargs=True)
    found = after.decoding(model, task, "cpu", "fp32")
    assert found["passed"] is passed
    assert (found["max_difference"] > found["bound"]) is not passed


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_correct_is_said_of_every_attention_of_the_model(monkeypatch, precision, dtype):
    pattern = {"n_layers": 3, "attention_pattern": ["sdpa", "sliding_window"]}
    cfg, task, model = built(model=pattern | {"attention_options": {"sliding_window": {"window": 5}}})
    asked, sizes = [], []

    def check(name, **how):
        asked.append((name, how))
        failed = [SimpleNamespace(name=name)] if name == "sliding_window" else []
        return Report(results=[name], refused=[*failed], seconds=1.0)

    def measured_size(attention, **how):
        sizes.append((attention.name, how))
        return [f"measured {attention.name}"]

    monkeypatch.setattr(after, "check", check)
    monkeypatch.setattr(after, "measured_size", measured_size)
    monkeypatch.setattr(after, "replace", lambda report, subject: report)
    found = after.correctness(cfg, "cpu", model, task, precision)
    assert asked == [
        ("sdpa", {"device": "cpu", "quick": True}),
        ("sliding_window", {"device": "cpu", "quick": True, "window": 5}),
    ]
    assert {name for name, _ in sizes} == {"sdpa", "sliding_window"}
    assert all(how == {"batch": 3, "n_tokens": 16, "device": "cpu", "dtype": dtype} for _, how in sizes)
    assert {"sdpa", "sliding_window", "measured sdpa", "measured sliding_window"} <= set(found["results"])
    assert (len(found["refused"]), found["seconds"]) == (1, 2.0)


class Report(SimpleNamespace):
    def to_dict(self):
        return vars(self)


def test_the_sentence_on_decoding():
    def leak(**how):
        return {
            "tests": [{"name": "x", "passed": False, "skipped": False, "detail": "other"}, {"name": "decoding", **how}]
        }

    assert after.decoding_differs(leak(passed=False, skipped=False, detail="it differs")) == ["it differs"]
    assert after.decoding_differs(leak(passed=True, skipped=False, detail="")) == []
    assert after.decoding_differs(leak(passed=False, skipped=True, detail="no cache")) == []
