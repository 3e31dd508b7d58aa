"""Comparisons and sweeps that cannot be meant so: refused before anything starts, every reason at once, no traceback."""

from __future__ import annotations

import dataclasses

import pytest

import attnzoo
from attnzoo.cli import main
from attnzoo.comparison.sweep import MOST_CELLS, expand, plan_sweep
from attnzoo.config import compose
from attnzoo.errors import RequestError
from attnzoo.training.validation import faults, most_jobs


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("compare seed=3", "attnzoo compare takes seeds=[3]"),
        ("compare seed=0 seeds=[1]", "attnzoo compare takes seeds=[0]"),
        ("train seed=1 seed=2", "seed is given more than once: seed=1 seed=2"),
        ("train seed=1 +seed=1", "seed is given more than once"),
        ("train attention=sdpa attention=gla", "attention is given more than once"),
        ("compare model.n_layers=1 ++model.n_layers=2", "model.n_layers is given more than once"),
        ("compare experiment=tiny experiment=demo", "experiment is given more than once"),
        ("compare backends=[sdpa] attention=gla", "gla is not among the backends sdpa"),
        ("compare logger.name=x", "each cell goes by the name of its folder"),
        ("compare backends=[sdpa] jobs=1000000", "the most for"),
        ("compare jobs=0", "jobs=0: must be at least 1"),
        ("compare jobs=-2", "jobs=-2: must be at least 1"),
        ("compare backends=[sdpa,sdpa]", "backends names sdpa more than once"),
        ("compare backends=[3xgla+sdpa,gla+2xgla+sdpa]", "backends names 3xgla+sdpa more than once"),
        ("compare seeds=[1,2,1]", "seeds names 1 more than once"),
        ("compare time_limit=0", "time_limit=0.0: must be more than 0"),
        ("compare time_limit=-1", "time_limit=-1.0: must be more than 0"),
        ("sweep seed=0,1 time_limit=inf", "time_limit=inf"),
        ("sweep seed=0,1 jobs=1000000", "the most for"),
        ("sweep seed=0,1 jobs=1,2", "jobs is one for all cells"),
        ("sweep seed=0,1 time_limit=1,2", "time_limit is one for all cells"),
        ("sweep seed=1,2 seed=3", "seed is given more than once: seed=1,2 seed=3"),
        ("sweep seed=range(0)", "there is no value in it"),
        ("sweep seed=range(3,1)", "there is no value in it"),
        ("sweep seed=range(0,5,0)", "there is no value in it"),
        ("sweep trainer.muon_lr=range(0,1,nan)", "there is no value in it"),
        ("sweep seed=choice()", "cannot be read"),
        ("sweep seed=interval(0,1)", "name the values"),
        ("sweep seed=shuffle(0,1)", "shuffled anew at each start"),
        ("sweep attention=shuffle(glob(*))", "cannot be read"),
        ("sweep attention=glob(zz*)", "matches none of based"),
        ("sweep seed=glob(*)", "seed is no group"),
        ("sweep seed=range(1000000000)", "these are 1000000000 values"),
        ("sweep seed=range(1000) model.n_layers=range(1,1000)", "999000 combinations are asked for"),
        ("sweep trainer.muon_lr=0.1,0.10", "asked for more than once"),
        ("sweep model.attention_pattern=[sdpa],['sdpa']", "is the same cell as"),
        ("train logger.group=${oc.env:HOME}", "logger.group: a configuration reads no environment variables"),
        ("train data=files data.paths=[${oc.env:HOME}]", "data.paths[0]: a configuration reads no environment variables"),
        ("compare logger.group=${oc.env:NOT_THERE,x}", "reads no environment variables"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused(command, reason, capsys):
    assert main([*command.split(), "--cfg", "job"]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert "Traceback" not in said


def test_every_fault_of_a_sweep_at_once():
    with pytest.raises(RequestError) as wrong:
        plan_sweep(["seed=range(0)", "attention=spda,gla", "model.n_layers=interval(1,2)", "trainer.mx_steps=3"])
    text = "\n".join(wrong.value.reasons)
    assert all(part in text for part in ("seed=range(0)", "'spda'", "model.n_layers=interval", "'trainer.max_steps'"))


def test_ranges_that_count_down_or_by_parts_are_counted_rightly():
    for words, n in (("range(5,1,-1)", 4), ("range(0,1,0.25)", 4), ("range(2)", 2), ("sort(3,1,2)", 3)):
        assert len(expand([f"trainer.muon_lr={words}"])) == n
    assert [job.overrides for job in expand(["seed=sort(2,1)"])] == [["seed=1"], ["seed=2"]]
    assert len(expand([f"seed=range({MOST_CELLS})"])) == MOST_CELLS


def test_an_environment_variable_of_a_foreign_file_is_refused_and_others_keep_their_own(tmp_path, monkeypatch):
    from omegaconf import OmegaConf

    monkeypatch.setenv("HIDDEN_THING", "hush")
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "theirs.yaml").write_text(
        "# @package _global_\nlogger:\n  group: ${oc.env:HIDDEN_THING}\n"
    )
    with pytest.raises(RequestError, match=r"logger\.group: a configuration reads no environment") as wrong:
        compose("train", ["experiment=theirs"], folders=[tmp_path])
    assert "hush" not in str(wrong.value)
    assert OmegaConf.create({"a": "${oc.env:HIDDEN_THING}"}).a == "hush"


def test_a_configuration_made_by_hand_is_held_to_the_same():
    cfg = compose("compare", ["experiment=tiny", "backends=[sdpa]"])
    for change, reason in (
        ({"seed": 3}, "seeds=[3]"),
        ({"jobs": most_jobs() + 1}, "the most for"),
        ({"seeds": [2, 2]}, "more than once"),
        ({"time_limit": 0.0}, "more than 0"),
    ):
        wrong = dataclasses.replace(cfg, **change)
        assert any(reason in said for said in faults(wrong))
        with pytest.raises(RequestError):
            attnzoo.compare(wrong)
    assert faults(dataclasses.replace(cfg, jobs=most_jobs(), time_limit=0.5)) == []
