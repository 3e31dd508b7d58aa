"""W&B is tested for real, offline: the wandb core writes a run, and its own reader reads it back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from helpers import tiny

from attnzoo.files import read_json_lines as read_lines
from attnzoo.loggers.csv import write_rows
from attnzoo.training import train
from attnzoo.training.loggers import JsonLines
from attnzoo.training.optim import Together
from attnzoo.training.wandb_run import WandbRun, run_id

WANDB = Path(sys.executable).with_name("wandb")


def read_back(folder: Path) -> dict:
    """What ``wandb leet inspect`` finds in the one offline run under ``folder``."""
    (run,) = (folder / "wandb").glob("offline-run-*")
    command = [WANDB, "leet", "inspect", "--json", run]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return {"lines": [json.loads(line) for line in done.stdout.splitlines()], "text": done.stdout}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of its own, so that what W&B would leave there is seen."""
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    for name in [n for n in os.environ if n.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    return place


def test_an_offline_run_is_whole_quiet_and_stays_in_its_folder(tmp_path, home, capfd):
    cfg = tiny(tmp_path / "run")
    cfg.logger.wandb, cfg.logger.group = "offline", "zoo"
    cfg.attention.options = {}
    record = train(cfg)
    assert record.status == "ok"
    assert capfd.readouterr() == ("", "")
    assert list(home.rglob("*")) == []
    assert not [name for name in os.environ if name.startswith("WANDB_DIR")]
    text = read_back(tmp_path / "run")["text"]
    for word in ("val_loss_nats", "train_loss_nats", "tokens", "quality/val_loss_nats", "zoo", "max_steps"):
        assert word in text, word
    exits = [line for line in read_back(tmp_path / "run")["lines"] if line.get("type") == "exit"]
    assert exits
    assert not exits[0]["exit"].get("exit_code", 0)


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 255), (ZeroDivisionError(), 1)])
def test_how_a_run_ended_is_how_wandb_shows_it(tmp_path, home, monkeypatch, error, code):
    """0 finished, 255 killed, else failed."""

    def broken(*_):
        raise error

    monkeypatch.setattr(Together, "skip_if", broken)
    cfg = tiny(tmp_path / "run")
    cfg.logger.wandb = "offline"
    with suppress(KeyboardInterrupt):
        train(cfg)
    (ended,) = [line for line in read_back(tmp_path / "run")["lines"] if line.get("type") == "exit"]
    assert ended["exit"]["exit_code"] == code


def test_an_offline_run_does_not_measure_itself_for_its_maker(tmp_path, home):
    """W&B would start two threads that send how long its calls took, offline too."""
    code = (
        "import sys, threading, pathlib; from attnzoo.training.wandb_run import WandbRun\n"
        "run = WandbRun(pathlib.Path(sys.argv[1])); run.log({'tokens': 1, 'x': 2.0})\n"
        "print(run.mode, [t.name for t in threading.enumerate() if 'Otel' in t.name])"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], capture_output=True, text=True, check=True)
    assert done.stdout == "offline []\n"


def test_a_failed_run_is_finished_as_failed(tmp_path, home, monkeypatch):
    from attnzoo.training import run as run_module

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(run_module, "save_weights", broken)
    cfg = tiny(tmp_path / "run")
    cfg.logger.wandb = "offline"
    assert train(cfg).status == "failed"
    exits = [line for line in read_back(tmp_path / "run")["lines"] if line.get("type") == "exit"]
    assert "1" in json.dumps(exits)


def test_an_unreachable_server_is_said_once_and_the_run_is_kept_offline(tmp_path, home, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # the discard port: refused at once
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    said = []
    run = WandbRun(tmp_path / "run", mode="online", warn=said.append, init_timeout=3.0)
    run.log({"tokens": 1, "loss": 2.0})
    run.finish()
    assert len(said) == 1
    assert "not reachable" in said[0]
    assert run.status()["asked"] == "online"
    assert run.status()["mode"] == "offline"
    assert "loss" in read_back(tmp_path / "run")["text"]


def test_online_without_a_key_goes_on_offline(tmp_path, home):
    code = f"""
from pathlib import Path
from attnzoo.training.wandb_run import WandbRun
run = WandbRun(Path({str(tmp_path / "run")!r}), mode="online")
run.finish()
print(run.status()["mode"])
"""  # a process of its own: W&B remembers a key for as long as it lives
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    assert done.stdout == "offline\n"
    assert len(done.stderr.splitlines()) == 1
    assert "kept offline" in done.stderr


def test_a_wandb_that_breaks_later_is_said_once(tmp_path, home):
    said = []
    run = WandbRun(tmp_path / "run", warn=said.append)

    class Dead:
        def log(self, values, step=None):
            raise ConnectionError("the core is gone\nwith a long story")

    run.run = Dead()
    for _ in range(3):
        run.log({"tokens": 1})
    run.summarise({"x": 1})
    run.finish()
    assert said == ["W&B stopped taking numbers (the core is gone); the run goes on without it"]


def test_a_wandb_that_cannot_be_imported_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    said = []
    run = WandbRun(tmp_path / "run", warn=said.append)
    run.log({"tokens": 1})
    run.finish()
    assert len(said) == 1
    assert "could not be started" in said[0]


def test_disabled_writes_nothing(tmp_path):
    run = WandbRun(tmp_path / "run", mode="disabled")
    run.log({"tokens": 1})
    run.finish()
    assert not (tmp_path / "run").exists()


def test_two_runs_never_share_an_id_unless_resumed(tmp_path):
    first = run_id(tmp_path, resume=False)
    assert run_id(tmp_path, resume=True) == first
    assert run_id(tmp_path, resume=False) != first


def test_metrics_go_on_after_the_kept_steps(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = JsonLines(path)
    for step in (2, 4, 6):
        log.log_metrics({"loss": float("nan") if step == 4 else 1.0}, step)
    with path.open("a") as file:
        file.write('{"step": 8, "lo')  # a kill in the middle of a line
    log = JsonLines(path, keep_until=4)
    log.log_metrics({"loss": 3.0, "val": 1.0}, 6)
    write_rows(tmp_path / "metrics.csv", read_lines(path))
    assert read_lines(path) == [
        {"step": 2, "loss": 1.0},
        {"step": 4, "loss": None},
        {"step": 6, "loss": 3.0, "val": 1.0},
    ]
    assert (tmp_path / "metrics.csv").read_text() == "step,loss,val\n2,1.0,\n4,,\n6,3.0,1.0\n"
