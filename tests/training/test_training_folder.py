"""Which folder ``run_dir=auto`` is: the same for the same settings, the shorter run's for more steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from helpers import tiny

import attnzoo
from attnzoo.comparison.plan import plan, write_plan
from attnzoo.comparison.sweep import plan_sweep
from attnzoo.errors import RequestError
from attnzoo.measure.record import Record, config_hash
from attnzoo.training import train
from attnzoo.training.again import flat_settings, in_the_way
from attnzoo.training.config import load_config, to_yaml
from attnzoo.training.run import with_text

WORDS = ["experiment=tiny", "logger=disabled"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*more: str, write: bool = True) -> str:
    cfg = attnzoo.compose("train", [*WORDS, *more])
    if write:
        Path(cfg.run_dir).mkdir(parents=True, exist_ok=True)
        Path(cfg.run_dir, "config.yaml").write_text(to_yaml(cfg))
    return cfg.run_dir


def test_more_steps_find_the_shorter_run_and_fewer_do_not():
    first = run("trainer.max_steps=4")
    assert run("trainer.max_steps=3", write=False) != first
    assert run("trainer.max_steps=8") == first  # its config.yaml says 8 now
    assert run("trainer.max_steps=8", write=False) == first
    assert run("trainer.max_steps=6", write=False) != first
    assert run("trainer.max_steps=9", write=False) == first


@pytest.mark.parametrize(
    "other", ["seed=1", "attention=exact", "model.n_layers=1", "trainer.adamw_lr=0.1", "trainer.batch_size=3"]
)
def test_a_shorter_run_of_other_settings_is_left_alone(other):
    first = run("trainer.max_steps=4")
    assert run("trainer.max_steps=8", other) != first


def test_of_several_the_longest_and_the_very_same_where_it_is():
    run("trainer.max_steps=4")
    two = "runs/" + Path(run("trainer.max_steps=4", write=False)).name[:-6] + "ffffff"
    cfg = attnzoo.compose("train", [*WORDS, "trainer.max_steps=6", f"run_dir={two}"])
    Path(two).mkdir()
    Path(two, "config.yaml").write_text(to_yaml(cfg))
    assert run("trainer.max_steps=8", write=False) == two
    assert run("trainer.max_steps=5", write=False) != two


def test_other_parts_of_a_step_find_the_run():
    first = run("trainer.batch_size=4")
    assert run("trainer.batch_size=2", "trainer.accumulate=2", write=False) == first
    assert run("trainer.batch_size=2", write=False) != first


def test_a_run_that_starts_over_takes_no_shorter_one():
    first = run("trainer.max_steps=4")
    assert run("trainer.max_steps=8", "trainer.restart=true", write=False) != first
    run("trainer.max_steps=8")
    assert run("trainer.max_steps=8", "trainer.restart=true", write=False) == first


def test_a_text_that_was_edited_is_another_run():
    text = Path("text.txt")
    text.write_text("".join(f"a line of text, number {n}\n" for n in range(400)))
    words = ["data=files", "data.paths=[text.txt]", "data.allow_shared_text=true"]
    first = run(*words, "trainer.max_steps=4")
    cfg = with_text(load_config(first))
    Path(first, "config.yaml").write_text(to_yaml(cfg))
    assert run(*words, "trainer.max_steps=8", write=False) == first
    text.write_text(text.read_text() + "one more\n")
    assert run(*words, "trainer.max_steps=8", write=False) != first


def test_a_folder_that_cannot_be_read_is_passed_over():
    first = run("trainer.max_steps=4")
    Path(first, "config.yaml").write_text("{")
    assert run("trainer.max_steps=8", write=False) != first


def test_a_comparison_of_more_steps_finds_the_shorter_one():
    def compared(*more):
        return plan(attnzoo.compose("compare", [*WORDS, *more]))

    sdpa = "backends=[sdpa]"
    first = compared(sdpa, "trainer.max_steps=4")
    write_plan(first)
    assert compared("backends=[sdpa,exact]", "trainer.max_steps=8").folder == first.folder
    assert compared(sdpa, "trainer.max_steps=3").folder != first.folder
    assert compared(sdpa, "trainer.max_steps=8", "model.n_layers=1").folder != first.folder
    assert compared(sdpa, "trainer.max_steps=8", "trainer.restart=true").folder != first.folder


def test_a_sweep_of_more_steps_finds_the_shorter_one():
    def swept(*more):
        return plan_sweep([*WORDS, "seed=0,1", *more])

    first = swept("trainer.max_steps=4")
    write_plan(first)
    assert swept("trainer.max_steps=8").folder == first.folder
    assert swept("trainer.max_steps=3").folder != first.folder
    assert swept("trainer.max_steps=8", "model.n_layers=1,2").folder != first.folder


def test_secrets_do_not_tell_runs_apart_and_are_not_shown():
    """No file keeps them, so that a run with one goes on; what else differs is named without them."""

    def settings(key, width, nested):
        options = {"api_key": key, "hub": {"token": nested}}
        return flat_settings(tiny(attention="mine", options=options, model={"d_model": width}))

    assert in_the_way(settings("abc", 16, "def"), settings("***", 16, "***")) == []
    assert in_the_way(settings("abc", 16, "def"), settings("xyz", 32, "***")) == [
        "model.d_model: there 16, asked for 32"
    ]


LATER = ("norm", "mlp", "scale", "output_gate")


def without_later(folder):
    """As a version wrote it that knew fewer settings."""
    config, record = (
        yaml.safe_load((folder / "config.yaml").read_text()),
        json.loads((folder / "record.json").read_text()),
    )
    for key in LATER:
        del config["model"][key]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "record.json").write_text(json.dumps({**record, "config_hash": config_hash(config)}))


def test_what_a_version_with_fewer_settings_finished_is_kept(tmp_path, capfd):
    train(tiny(tmp_path / "run", max_steps=2))
    without_later(tmp_path / "run")
    before = (tmp_path / "run/record.json").read_bytes()
    capfd.readouterr()
    train(tiny(tmp_path / "run", max_steps=2))
    assert "is finished (ok) and kept" in capfd.readouterr().err
    assert (tmp_path / "run/record.json").read_bytes() == before
    with pytest.raises(RequestError, match="another configuration") as wrong:
        train(tiny(tmp_path / "run", max_steps=2, model={"norm": "layer"}))
    assert wrong.value.reasons == ["model.norm: there rms, asked for layer"]
    assert train(tiny(tmp_path / "run", max_steps=3)).history[0]["max_steps"] == 2  # goes on, and is of today then


def test_a_comparison_of_a_version_with_fewer_settings_goes_on(tmp_path):
    def compared(backends, *more):
        return plan(attnzoo.compose("compare", [*WORDS, f"backends=[{backends}]", f"run_dir={tmp_path / 'c'}", *more]))

    first = compared("sdpa")
    write_plan(first)
    (cell,) = first.cells
    cell.folder.mkdir()
    (cell.folder / "config.yaml").write_text(to_yaml(cell.cfg))
    Record(status="ok", config_hash=cell.hash).save(cell.folder / "record.json")
    without_later(cell.folder)
    held = json.loads((tmp_path / "c/comparison.json").read_text())
    for key in LATER:
        del held["common"][f"model.{key}"]
    (tmp_path / "c/comparison.json").write_text(json.dumps(held))
    assert [bool(cell.finished()) for cell in compared("sdpa,exact").cells] == [True, False]
    for backends in ("sdpa", "exact"):  # a cell that joins has the settings of the others too
        with pytest.raises(RequestError, match="another comparison") as wrong:
            compared(backends, "model.norm=layer")
        assert wrong.value.reasons == ["model.norm: there rms, asked for layer"]
