"""Which cells there are, which are done, which are refused, and that a start does the others as it was asked to."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

import attnzoo
from attnzoo.comparison import run as run_module
from attnzoo.comparison.plan import plan, write_plan
from attnzoo.comparison.run import carry_out
from attnzoo.comparison.sweep import plan_sweep
from attnzoo.errors import RequestError
from attnzoo.measure.record import Record
from attnzoo.training.config import to_yaml


def asked(folder, *more: str):
    return plan(attnzoo.compose("compare", ["experiment=tiny", "logger=disabled", f"run_dir={folder}", *more]))


def done(cell, status: str = "ok", **more):
    cell.folder.mkdir(parents=True, exist_ok=True)
    (cell.folder / "config.yaml").write_text(to_yaml(cell.cfg))
    record = Record(status=status, config_hash=cell.hash, attention=cell.cfg.attention.name, seed=cell.cfg.seed)
    record.update(environment={"seconds": 1.0, "stage_seconds": {"train": 2.0}}, **more)
    record.save(cell.folder / "record.json")


def test_cells_differ_in_seed_and_backend_and_are_timed_together_afterwards(tmp_path):
    cells = asked(tmp_path, "backends=[sdpa,exact]", "seeds=[4,7]").cells
    assert [(c.cfg.attention.name, c.cfg.seed, c.variant) for c in cells] == [
        ("sdpa", 4, "sdpa"), ("sdpa", 7, "sdpa"), ("exact", 4, "exact"), ("exact", 7, "exact"),
    ]  # fmt: skip
    assert len({cell.hash for cell in cells}) == 4
    for cell in cells:
        assert cell.timed
        assert not cell.cfg.measure.timing
        assert not cell.cfg.trainer.progress
        assert not cell.cfg.trainer.resume
        assert cell.cfg.logger.group == tmp_path.name
        assert cell.cfg.logger.name == cell.folder.name == cell.run
        assert cell.folder.parent == tmp_path
    assert not asked(tmp_path, "backends=[sdpa]", "measure=none").cells[0].timed


@pytest.mark.parametrize(("status", "kept"), [("ok", 1), ("refused", 1), ("oom", 1), ("failed", 0), ("interrupted", 0)])
def test_what_is_kept(tmp_path, status, kept):
    (cell,) = asked(tmp_path, "backends=[sdpa]").cells
    assert cell.finished() is None
    done(cell, status)
    assert (cell.finished() is not None) == kept
    assert asked(tmp_path, "backends=[sdpa]", "trainer.restart=true").cells[0].finished() is None


def test_a_record_of_other_settings_is_not_kept(tmp_path):
    (cell,) = asked(tmp_path, "backends=[sdpa]").cells
    done(cell)
    record = Record.load(cell.folder / "record.json")
    record.config_hash = asked(tmp_path / "x", "backends=[sdpa]", "model.n_layers=1").cells[0].hash
    record.save(cell.folder / "record.json")
    assert cell.finished() is None


def test_more_steps_train_on_and_fewer_are_refused(tmp_path):
    first = asked(tmp_path, "backends=[sdpa]", "trainer.max_steps=4")
    write_plan(first)
    done(first.cells[0])
    (more,) = asked(tmp_path, "backends=[sdpa]", "trainer.max_steps=8").cells
    assert more.finished() is None
    assert more.is_there()
    with pytest.raises(RequestError) as wrong:
        asked(tmp_path, "backends=[sdpa]", "trainer.max_steps=3")
    assert wrong.value.reasons == ["trainer.max_steps: there 4, asked for 3"]
    with pytest.raises(RequestError, match="another comparison"):
        asked(tmp_path, "backends=[sdpa]", "model.n_layers=1")


def test_a_cell_of_other_settings_is_never_written_over_unless_asked_for_by_name(tmp_path):
    words = ["backends=[sliding_window,sdpa]", "options.sliding_window.window="]
    for cell in asked(tmp_path, words[0], words[1] + "7").cells:
        done(cell)
    with pytest.raises(RequestError, match=r"trainer\.restart=true does these cells again") as wrong:
        asked(tmp_path, words[0], words[1] + "9")
    assert wrong.value.reasons == ["sliding_window-seed0: attention.window: there 7, asked for 9"]
    assert asked(tmp_path, words[0], words[1] + "9", "trainer.restart=true")


def test_a_sweep_holds_its_cells_to_the_same(tmp_path):
    words = ["experiment=tiny", "seed=0,1", "logger=disabled", "time_limit=9", "jobs=2", f"run_dir={tmp_path}"]
    there = plan_sweep(words)
    assert (there.time_limit, there.jobs) == (9.0, 2)
    assert [cell.cfg.seed for cell in there.cells] == [0, 1]
    assert len({cell.hash for cell in there.cells}) == 2
    done(there.cells[0])
    with pytest.raises(RequestError, match="cells with other settings"):
        plan_sweep([*words, "model.n_layers=1"])
    assert plan_sweep([word for word in words if "time" not in word]).cells[0].finished()


@pytest.fixture
def started(monkeypatch):
    """Starts cells in no process: what was asked of them, and each has a record then."""
    found: dict = {}

    def run_cells(cells, jobs, say, limit, devices):
        found.update(cells=[cell.run for cell in cells], jobs=jobs, limit=limit)
        for cell in reversed(cells):
            done(cell)
            say(cell, Record.load(cell.folder / "record.json"), 3.0)

    monkeypatch.setattr(run_module, "run_cells", run_cells)
    monkeypatch.setattr(run_module, "_loaded", lambda cells: nullcontext())
    return found


def test_a_start_does_what_is_not_done_with_as_many_jobs_and_as_long_as_asked(tmp_path, started, capsys):
    words = ["backends=[sdpa,exact]", "seeds=[0,1]", "measure=none", "jobs=3", "time_limit=60"]
    there = asked(tmp_path, *words)
    done(there.cells[2])
    records = carry_out(there)
    assert started == {"cells": ["sdpa-seed0", "sdpa-seed1", "exact-seed1"], "jobs": 3, "limit": 60.0}
    assert [(r.attention, r.seed) for r in records] == [("sdpa", 0), ("sdpa", 1), ("exact", 0), ("exact", 1)]
    said = capsys.readouterr().err
    assert "1 of 4 cells were finished before and are kept" in said
    assert "[4/4]" in said
    time = json.loads((tmp_path / "comparison.json").read_text())["time"]
    assert time["training"] == 2.0  # three cells of 2 s on three jobs
    carry_out(asked(tmp_path, *words))
    assert started["cells"] == []
    carry_out(asked(tmp_path, *words, "trainer.restart=true"))
    assert len(started["cells"]) == 4


def test_no_more_jobs_than_cells_share_the_threads(tmp_path, started):
    carry_out(asked(tmp_path, "backends=[sdpa]", "measure=none", "jobs=5"))
    assert (started["jobs"], started["limit"]) == (1, None)


def test_rounds_that_fail_are_told_after_the_report(tmp_path, started, monkeypatch):
    from attnzoo.comparison.rounds import Rounds
    from attnzoo.errors import AttnzooError

    monkeypatch.setattr(Rounds, "run", lambda self, plan: (1.0, "killed"))
    with pytest.raises(AttnzooError, match="no timings from this start") as failed:
        carry_out(asked(tmp_path, "backends=[sdpa]"))
    assert failed.value.reasons == ["killed"]
    assert (tmp_path / "report.html").is_file()
