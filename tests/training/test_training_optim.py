from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from helpers import tiny, trainer_config
from hypothesis import given
from hypothesis import strategies as st

from attnzoo.model import build_model
from attnzoo.optimizers.base import parameter_groups
from attnzoo.optimizers.muon import Muon, orthogonalise
from attnzoo.training.optim import build_optimizer, build_schedule


def factor(step, cfg):
    return build_schedule(cfg).factor(step, cfg.max_steps)


@given(
    name=st.sampled_from(["wsd", "cosine"]),
    max_steps=st.integers(1, 300),
    warmup=st.integers(0, 40),
    decay=st.floats(0, 1),
)
def test_schedule_warms_up_decays_and_stays_within_bounds(name, max_steps, warmup, decay):
    own = {"decay_fraction": decay} if name == "wsd" else {}
    cfg = trainer_config(schedule=name, max_steps=max_steps, warmup_steps=warmup, **own)
    factors = [factor(step, cfg) for step in range(max_steps)]
    assert all(0 < f <= 1 for f in factors)
    peak = factors.index(max(factors))
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)


def test_schedule_by_hand():
    cfg = trainer_config(schedule="wsd", max_steps=100, warmup_steps=4, decay_fraction=0.4)
    assert [factor(s, cfg) for s in (0, 1, 4, 59, 60, 80, 99)] == pytest.approx([0.2, 0.4, 1, 1, 1, 0.5, 0.025])
    cfg = trainer_config(schedule="cosine", max_steps=104, warmup_steps=4)
    assert [factor(s, cfg) for s in (4, 54)] == pytest.approx([1, 0.5])


@pytest.mark.parametrize("backend", ["sdpa", "gqa", "linear"])
@pytest.mark.parametrize("positions", ["rope", "learned"])
def test_every_parameter_is_in_one_group_once(backend, positions):
    cfg = tiny(attention=backend, model={"short_conv": 3, "n_heads": 4, "n_layers": 2})
    cfg.positions.name = positions
    model = build_model(cfg)
    groups = parameter_groups(model)
    every = [id(p) for group in vars(groups).values() for p in group]
    assert sorted(every) == sorted(id(p) for p in model.parameters())
    names = {id(p): name for name, p in model.named_parameters()}
    owners = {kind: {names[id(p)].rsplit(".", 2)[-2] for p in group} for kind, group in vars(groups).items()}
    assert owners["linear"] == {"qkv", "out", "gate_up", "down"}
    assert owners["convs"] == {"conv"}
    assert {"norm", "q_norm", "k_norm", "attention_norm"} <= owners["rest"]
    # the embedding is tied with the head: one parameter, decayed once
    assert "embedding.weight" in {names[id(p)] for p in groups.matrices}


def test_only_matrices_decay_and_convolutions_step_further():
    cfg = trainer_config(weight_decay=0.1, adamw_lr=1e-3, muon_lr=1e-2)
    model = build_model(tiny(model={"short_conv": 3}))
    optimizer = build_optimizer(model, cfg)
    names = {id(p): name for name, p in model.named_parameters()}
    decayed = {names[id(p)] for g in optimizer.param_groups for p in g["params"] if g["weight_decay"]}
    assert decayed == {name for name, p in model.named_parameters() if p.dim() == 2 and "conv" not in name}
    rates = {names[id(p)]: g["base_lr"] for g in optimizer.param_groups for p in g["params"]}
    assert rates["blocks.0.attention.projection.qkv.weight"] == cfg.options["muon_lr"]
    assert rates["embedding.weight"] == rates["norm.weight"] == cfg.options["adamw_lr"]
    assert rates["blocks.0.attention.projection.conv.weight"] == 10 * cfg.options["adamw_lr"]


@pytest.mark.parametrize("shape", [(24, 8), (8, 24), (16, 16)])
def test_muon_steps_as_torch_does(shape):
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for _ in range(3)]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    settings = {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    optimizers = Muon(ours, **settings), torch.optim.Muon(theirs, **settings)
    for _ in range(3):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn(shape)
            q.grad = p.grad.clone()
        for o in optimizers:
            o.step()
    moved = 3 * 0.02 * 0.2 * max(shape) ** 0.5  # three updates, whose singular values are near 1
    for p, q in zip(ours, theirs, strict=True):
        # torch iterates in bfloat16, of 2^-8 relative precision, over five steps that may each triple an error
        torch.testing.assert_close(p, q, atol=0.05 * moved, rtol=0)


def test_orthogonalise_flattens_the_singular_values():
    torch.manual_seed(1)
    out = orthogonalise(torch.randn(4, 24, 12), (3.4445, -4.7750, 2.0315), 5, 1e-7)
    values = torch.linalg.svdvals(out)
    assert values.min() > 0.3  # Muon's coefficients leave them between about 0.5 and 1.2, small ones still rising
    assert values.max() < 1.3


def test_a_skipped_step_changes_nothing_and_the_next_one_does():
    model = build_model(tiny())
    optimizer = build_optimizer(model, trainer_config())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.full_like(p, torch.nan)
    optimizer.skip_if(torch.tensor(1.0))
    optimizer.step()
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    fresh = build_optimizer(model, trainer_config())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    fresh.skip_if(torch.tensor(0.0))
    fresh.step()
    assert not any(torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_optimizer_state_is_saved_and_restored(name):
    cfg = trainer_config(optimizer=name)
    torch.manual_seed(0)
    models = [build_model(tiny()) for _ in range(2)]
    one = build_optimizer(models[0], cfg)

    def step(model, optimizer, seed):
        torch.manual_seed(seed)
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()

    step(models[0], one, 1)
    models[1].load_state_dict(models[0].state_dict())
    two = build_optimizer(models[1], cfg)
    two.load_state_dict(deepcopy(one.state_dict()))
    step(models[0], one, 2)
    step(models[1], two, 2)
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(p, q)
    assert [g["base_lr"] for g in two.param_groups] == [g["base_lr"] for g in one.param_groups]
