"""Global random states: seeded on the CPU and on the devices named, and as before afterwards."""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import attnzoo
from attnzoo.measure.maps import backend_map
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig
from attnzoo.seeds import reseed, seeded

PACKAGE = Path(attnzoo.__file__).parent


@pytest.fixture
def cards(monkeypatch):
    """The generators of two CUDA devices that are not there; device 1 is the current one."""
    states, current = {0: "as it was", 1: "as it was"}, [1]

    @contextmanager
    def device(card):
        before, current[0] = current[0], torch.device(card).index
        yield
        current[0] = before

    def seed_all(seed):
        states.update(dict.fromkeys(states, f"seed {seed}"))

    def place(card):
        return current[0] if torch.device(card).index is None else torch.device(card).index

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: states.__setitem__(current[0], f"seed {seed}"))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seed_all)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda card: states[place(card)])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, card: states.__setitem__(place(card), state))
    return states


@pytest.mark.parametrize(("named", "index"), [("cuda:0", 0), ("cuda:1", 1), ("cuda", 1)])
def test_the_named_device_alone_is_seeded_and_it_is_as_before_afterwards(cards, named, index):
    other = 1 - index
    with seeded(7, named, "cpu", torch.device(named)):
        assert cards == {index: "seed 7", other: "as it was"}
        reseed(8, named)
        assert cards == {index: "seed 8", other: "as it was"}
    assert cards == {0: "as it was", 1: "as it was"}


def test_the_cpu_draws_the_same_and_is_as_before_afterwards():
    expected = torch.manual_seed(3) and torch.rand(4)
    before = torch.get_rng_state()
    with seeded(3):
        assert torch.equal(torch.rand(4), expected)
    with pytest.raises(RuntimeError), seeded(None):
        torch.rand(1) @ torch.rand(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_models_maps_and_checks_on_a_cpu_leave_every_card_alone(cards):
    assemble(ModelConfig(n_layers=1, d_model=16, n_heads=2), AttentionConfig("gla", {}), PositionsConfig("rope"), 8, 0)
    backend_map("sdpa", n_tokens=8)
    checks = ["dropout_in_training", "gradients_by_difference", "second_derivative", "many_rows_dropped"]
    report = attnzoo.check("sdpa", only=checks, dtype=torch.float32)
    assert report.results
    attnzoo.leak_test(lambda tokens: torch.zeros(*tokens.shape, 5), vocab_size=5, n_tokens=8)
    assert cards == {0: "as it was", 1: "as it was"}


def test_nothing_else_in_the_package_seeds_global_generators():
    seeds = re.compile(r"torch\.manual_seed|manual_seed_all|fork_rng\(devices=\[\]|seed_everything")
    found = [p.name for p in PACKAGE.rglob("*.py") if seeds.search(p.read_text()) and p.name != "seeds.py"]
    assert found == []
