"""Real comparisons: every cell keeps its row, a second start redoes nothing, a killed one goes on to the same result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import attnzoo
from attnzoo.comparison import children as children_module
from attnzoo.comparison.plan import plan, write_plan
from attnzoo.errors import RequestError
from attnzoo.lock import locked

TINY = [
    "experiment=tiny",
    "trainer.precision=fp32",
    "probe=none",
    "measure.memory=false",
    "measure.lengths=[8,16]",
    "logger=disabled",
]


def tiny(folder: Path, *more: str):
    return attnzoo.compose("compare", [*TINY, f"run_dir={folder}", *more])


def losses(folder: Path) -> dict[str, float | None]:
    records = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/record.json")}
    return {name: record.get("quality", {}).get("val_loss_nats") for name, record in records.items()}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """One small comparison, with a backend that a CPU refuses."""
    folder = tmp_path_factory.mktemp("compared") / "out"
    records = attnzoo.compare(tiny(folder, "backends=[sdpa,flex,linear]"))
    return folder, records


def test_every_cell_keeps_its_row(compared):
    folder, records = compared
    assert [(r["attention"], r["status"]) for r in records] == [("sdpa", "ok"), ("flex", "refused"), ("linear", "ok")]
    assert "no backward on cpu" in records[1]["reasons"][0]
    html = (folder / "report.html").read_text()
    assert all(name in html for name in ("sdpa", "flex", "linear"))
    assert len((folder / "summary.csv").read_text().splitlines()) == 4


def test_the_time_is_accounted_for(compared):
    folder, _ = compared
    time = json.loads((folder / "comparison.json").read_text())["time"]
    assert time["seconds"] == pytest.approx(sum(v for name, v in time.items() if name != "seconds"), abs=0.05)
    assert time["training"] > 0
    assert time["measuring"] > 0


def test_every_cell_has_a_process_and_a_log_of_its_own(compared):
    folder, records = compared
    assert all((folder / f"{r['attention']}-seed0" / "log.txt").is_file() for r in records)
    assert {r["environment"]["command"].split()[0] for r in records} == {"__main__.py"}


def test_timings_come_from_rounds_with_all_cells(compared):
    _, records = compared
    assert records[0]["cost"]["train_step_ms"]["median"] > 0
    assert records[2]["cost"]["train_step_ms"]["ratio"]["to"] == "sdpa"
    assert records[0]["cost"]["train_step_ms"]["rounds"] == records[2]["cost"]["train_step_ms"]["rounds"]


def test_cost_over_length_is_in_the_records_and_in_the_report(compared):
    folder, records = compared
    for record in (records[0], records[2]):
        assert [part["n_tokens"] for part in record["cost"]["length_sweep"]] == [8, 16]
    html = (folder / "report.html").read_text()
    assert "Train step over length" in html
    assert "Peak memory over length" in html


def test_a_second_start_redoes_nothing(compared, monkeypatch):
    folder, _ = compared
    started = []
    monkeypatch.setattr(children_module.Children, "call", lambda *a, **k: started.append(a))
    again = attnzoo.compare(tiny(folder, "backends=[sdpa,flex,linear]"))
    assert started == []
    assert [r["status"] for r in again] == ["ok", "refused", "ok"]


def test_another_comparison_does_not_go_into_the_same_folder(compared):
    folder, _ = compared
    with pytest.raises(RequestError) as wrong:
        plan(tiny(folder, "backends=[sdpa]", "model.n_layers=1"))
    assert any("model.n_layers: there 2, asked for 1" in reason for reason in wrong.value.reasons)


def test_more_backends_may_join(compared):
    folder, _ = compared
    cells = plan(tiny(folder, "backends=[sdpa,exact]")).cells
    assert [cell.finished() is not None for cell in cells] == [True, False]


def test_options_reach_the_cell_they_are_for(tmp_path):
    cfg = tiny(tmp_path, "backends=[sliding_window,linear]", "options.sliding_window.window=7")
    assert [cell.cfg.attention.options.get("window") for cell in plan(cfg).cells] == [7, None]


def test_a_run_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="is a file"):
        plan(tiny(tmp_path / "file", "backends=[sdpa]"))


def test_a_folder_in_use_is_refused(tmp_path):
    with locked(tmp_path), pytest.raises(RequestError, match="in use by process"):
        attnzoo.compare(tiny(tmp_path, "backends=[sdpa]"))


def test_a_process_that_dies_without_a_record_is_a_failed_row(tmp_path, monkeypatch):
    cfg = tiny(tmp_path, "backends=[sdpa]", "measure=none")
    real = children_module.Children.call

    def dies(self, module, arguments, log, **more):
        (tmp_path / "dies.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
        return real(self, "dies", [], log)

    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(children_module.Children, "call", dies)
    (record,) = attnzoo.compare(cfg)
    assert record["status"] == "failed"
    assert "SIGKILL" in record["reasons"][0]
    assert plan(cfg).cells[0].finished() is None  # it is done again at the next start


def test_killed_in_the_middle_it_goes_on_to_the_same_result(tmp_path):
    overrides = [*TINY, "backends=[sdpa,exact]", "measure=none", "trainer.max_steps=4", f"run_dir={tmp_path / 'out'}"]
    script = f"import attnzoo; attnzoo.compare(attnzoo.compose('compare', {overrides!r}))"
    first = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL, start_new_session=True)
    finished, second = (tmp_path / "out" / f"{name}-seed0" for name in ("sdpa", "exact"))
    _wait(lambda: (second / "config.yaml").is_file())
    first.send_signal(signal.SIGKILL)
    first.wait()
    _wait(lambda: not _processes_in(first.pid))  # the orphaned cell ends with its parent
    kept = (finished / "record.json").stat().st_mtime_ns

    subprocess.run([sys.executable, "-c", script], check=True)
    assert (finished / "record.json").stat().st_mtime_ns == kept
    whole = [o.replace(str(tmp_path / "out"), str(tmp_path / "whole")) for o in overrides]
    attnzoo.compare(attnzoo.compose("compare", whole))
    assert losses(tmp_path / "out") == losses(tmp_path / "whole")
    assert None not in losses(tmp_path / "out").values()


def test_the_plan_is_written_for_the_report(tmp_path):
    cfg = tiny(tmp_path, "backends=[sdpa,linear]", "seeds=[0,1]")
    write_plan(plan(cfg))
    written = json.loads((tmp_path / "comparison.json").read_text())
    assert [cell["run"] for cell in written["cells"]] == ["sdpa-seed0", "sdpa-seed1", "linear-seed0", "linear-seed1"]


def _wait(condition, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def _processes_in(session: int) -> list[int]:
    """Living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return [pid for pid in found if pid != os.getpid()]
