"""Optimisers and schedules are components: those of a file are trained, left out, resumed, compared and swept like the
package's own."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import attnzoo
from attnzoo.config import compose
from attnzoo.errors import RequestError
from attnzoo.model import build_model
from attnzoo.training.config import TrainerConfig, from_dict, to_dict
from attnzoo.training.optim import build_optimizer
from attnzoo.training.probe import probe_config

PLAIN = Path(__file__).with_name("plain.py")
TINY = ["experiment=tiny", "measure=none", "logger=disabled", "task=recall", "trainer.precision=fp32"]
MINE = [f"trainer.optimizer={PLAIN}:Lion", f"trainer.schedule={PLAIN}:Flat", "trainer.lion_lr=2e-3"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return attnzoo.load(folder, allow_code=True).state_dict()


def test_those_of_a_file_train_and_go_on_bit_by_bit(tmp_path: Path) -> None:
    words = [*TINY, *MINE, "trainer.max_steps=4", "trainer.weight_decay=0.2"]
    cfg = compose("train", [*words, f"run_dir={tmp_path / 'whole'}"])
    assert (cfg.trainer.optimizer, cfg.trainer.schedule) == ("Lion", "Flat")
    assert cfg.trainer.options == {"lion_lr": 0.002, "weight_decay": 0.2}
    assert {*cfg.code} == {"optimizer:Lion", "schedule:Flat"}
    assert from_dict(to_dict(cfg)) == cfg
    assert attnzoo.train(cfg).status == "ok"
    for steps in (2, 4):
        attnzoo.train(compose("train", [*words[:-2], "trainer.weight_decay=0.2", f"trainer.max_steps={steps}",
                                        f"run_dir={tmp_path / 'parts'}"]))  # fmt: skip
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(one[name], other[name]) for name in one)
    rows = [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()]
    assert {row["lr_factor"] for row in rows if "lr_factor" in row} == {1.0}


def test_a_plain_one_is_left_out_without_knowing_of_it() -> None:
    cfg = compose("train", [*TINY, *MINE])
    model = build_model(cfg, 8)
    optimizer = build_optimizer(model, cfg.trainer)
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.full_like(p, math.nan)
    optimizer.skip_if(torch.tensor(1.0))
    optimizer.step()
    assert all(torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True))
    assert not optimizer.state
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.skip_if(torch.tensor(0.0))
    optimizer.step()
    assert not any(torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True))
    optimizer.found_inf = torch.tensor(1.0)  # as a GradScaler sets it for one call
    between = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert all(torch.equal(p, was) for p, was in zip(model.parameters(), between, strict=True))


def test_parameters_that_are_left_out_are_named() -> None:
    cfg = compose("train", [*TINY, f"trainer.optimizer={PLAIN}:LeavesOut"])
    with pytest.raises(RequestError, match=r"LeavesOut cannot train this model\s+- it leaves out embedding\.weight"):
        build_optimizer(build_model(cfg, 8), cfg.trainer)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trainer.optimizer=adamw", "trainer.muon_lr=0.1"], "it is an option of muon"),
        (["trainer.schedule=cosine", "trainer.decay_fraction=0.1"], "it is an option of wsd"),
        (["trainer.optimizer=muo"], "trainer.optimizer=muo: did you mean muon? valid: adamw, muon"),
        (["trainer.schedule=cosin"], "trainer.schedule=cosin: did you mean cosine? valid: cosine, wsd"),
        (["probe.optimizer=adam"], "probe.optimizer=adam: did you mean adamw?"),
        ([f"trainer.optimizer={PLAIN}:Flat"], "does not extend attnzoo.Optimizer"),
        (["trainer.warmup_steps=-1"], "trainer.warmup_steps=-1: must not be negative"),
        (["trainer.decay_fraction=1.5"], "trainer.decay_fraction=1.5: must be between 0 and 1"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(words, said) -> None:
    with pytest.raises(RequestError) as caught:
        compose("train", [*TINY, *words])
    assert said in str(caught.value)


def test_every_fault_of_the_options_is_said_at_once() -> None:
    with pytest.raises(RequestError) as caught:
        compose("train", [*TINY, "trainer.muon_lr=-1", "trainer.weight_decay=-1", "trainer.betas=[2,0]"])
    assert len(caught.value.reasons) == 3


def test_settings_of_before_hold_options_that_the_chosen_ones_lack() -> None:
    """Earlier versions wrote all of them."""
    values = to_dict(compose("train", TINY))
    values["trainer"] |= {"optimizer": "adamw", "schedule": "cosine"}
    assert {*from_dict(values).trainer.options} == {"adamw_lr", "weight_decay", "betas", "warmup_steps"}
    values["trainer"]["muon_rate"] = 1.0
    (fault,) = from_dict_faults(values)
    assert "trainer.muon_rate" in fault


def from_dict_faults(values) -> list[str]:
    from attnzoo.training.validation import faults

    return [fault for fault in faults(from_dict(values)) if "unknown key" in fault]


def test_the_probe_is_trained_by_one_of_a_file_with_its_defaults(tmp_path: Path) -> None:
    words = ["probe.optimizer=" + f"{PLAIN}:Lion", f"run_dir={tmp_path}"]
    cfg = compose("train", [*TINY, "probe=recall", *words, "trainer.muon_lr=0.5"])
    trainer = probe_config(cfg).trainer
    assert (trainer.optimizer, trainer.options) == ("Lion", {})
    assert "optimizer:Lion" in cfg.code
    assert build_optimizer(build_model(cfg, 8), trainer).param_groups[0]["base_lr"] == 1e-3


def test_the_default_rates_are_those_of_before() -> None:
    cfg = compose("train", [])
    assert cfg.trainer.options == {
        "muon_lr": 0.01, "adamw_lr": 0.003, "weight_decay": 0.01, "betas": [0.9, 0.95], "warmup_steps": 20,
        "decay_fraction": 0.4,
    }  # fmt: skip
    assert probe_config(cfg).trainer == TrainerConfig(
        max_steps=cfg.probe.max_steps, batch_size=16, options={"muon_lr": 0.03, "adamw_lr": 0.009}, precision="fp32",
        eval_every=25,
    )  # fmt: skip
