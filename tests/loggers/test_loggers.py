"""Loggers as components: each step once whatever happens, failures told of, the built-in ones, the checks of the kind."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys

import pytest

import attnzoo
from attnzoo import Logger, RequestError, components
from attnzoo.checks.kinds import check_component
from attnzoo.training.handed import Handed

pytestmark = pytest.mark.usefixtures("files_forgotten")
TINY = (
    "attention=sdpa", "model.n_layers=1", "model.d_model=16", "model.n_heads=2", "measure=none", "trainer.batch_size=2",
    "trainer.log_every=1", "trainer.eval_every=2", "task=recall", "task.n_tokens=16", "logger=disabled",
    "trainer.device=cpu", "trainer.precision=fp32", "trainer.progress=false",
)  # fmt: skip
LINES = '''
import json
import attnzoo

class Lines(attnzoo.Logger):
    """Every call as a line."""
    source = "a test"
    def start(self, folder, config):
        self.file = folder / "lines.jsonl"
        self.say("start", config["attention"]["name"])
    def log(self, step, numbers):
        self.say("log", step, sorted(numbers))
    def finish(self, record):
        self.say("finish", record["status"])
    def say(self, *what):
        with self.file.open("a") as file:
            print(json.dumps(what), file=file)
'''


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "mine.py").write_text(LINES)
    return lambda *more: attnzoo.compose(
        "train", [*TINY, f"logger.extra=[{tmp_path}/mine.py:Lines]", f"run_dir={tmp_path}/run", *more]
    )


def said(tmp_path):
    return [json.loads(line) for line in (tmp_path / "run" / "lines.jsonl").read_text().splitlines()]


def test_a_logger_of_a_file_gets_each_step_once_and_the_record(tmp_path, lines):
    record = attnzoo.train(lines("trainer.max_steps=3"))
    assert record.status == "ok"
    first, *steps, last = said(tmp_path)
    assert (first, last) == (["start", "sdpa"], ["finish", "ok"])
    assert [step for _, step, _ in steps] == [1, 2, 3]
    assert "val_loss_nats" in steps[1][2]
    assert "warnings" not in record
    longer = attnzoo.train(lines("trainer.max_steps=5"))  # goes on; what was handed over does not come again
    assert longer.status == "ok"
    assert [call[1] for call in said(tmp_path) if call[0] == "log"] == [1, 2, 3, 4, 5]
    attnzoo.train(lines("trainer.max_steps=5", "trainer.restart=true"))  # another run in its place
    assert [call[1] for call in said(tmp_path) if call[0] == "log"] == [1, 2, 3, 4, 5] * 2


def test_an_interrupted_step_comes_whole_with_the_start_that_ends_it(tmp_path, lines, monkeypatch):
    from attnzoo.training import callbacks

    true = callbacks.evaluate

    def stops(*arguments, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return true(*arguments, **kwargs)

    monkeypatch.setattr(callbacks, "evaluate", stops)
    with pytest.raises(KeyboardInterrupt):
        attnzoo.train(lines("trainer.max_steps=4"))
    monkeypatch.setattr(callbacks, "evaluate", true)
    assert said(tmp_path)[-1] == ["finish", "interrupted"]
    attnzoo.train(lines("trainer.max_steps=4"))
    logged = {call[1]: call[2] for call in said(tmp_path) if call[0] == "log"}
    assert [call[1] for call in said(tmp_path) if call[0] == "log"] == [1, 2, 3, 4]
    assert {"train_loss_nats", "val_loss_nats"} <= {*logged[2]}


def test_one_that_joins_later_gets_what_was_before(tmp_path, lines):
    attnzoo.train(attnzoo.compose("train", [*TINY, f"run_dir={tmp_path}/run", "trainer.max_steps=2"]))
    attnzoo.train(lines("trainer.max_steps=3"))
    assert [call[1] for call in said(tmp_path) if call[0] == "log"] == [1, 2, 3]


@pytest.mark.parametrize("part", ["start", "log", "finish"])
def test_one_that_raises_is_told_of_and_ends_nothing(tmp_path, part):
    (tmp_path / "bad.py").write_text(
        LINES.replace(f'self.say("{part}"', f'raise SystemExit("no {part}")\n        self.say("{part}"')
    )
    record = attnzoo.train(attnzoo.compose(
        "train", [*TINY, f"logger.extra=[{tmp_path}/bad.py:Lines,csv]", f"run_dir={tmp_path}/run", "trainer.max_steps=2"]
    ))  # fmt: skip
    assert record.status == "ok"
    where = "log at step 1" if part == "log" else part
    assert record.warnings == [
        f"the logger Lines failed in {where} (SystemExit: no {part}); the run went on without it"
    ]
    assert json.loads((tmp_path / "run" / "record.json").read_text())["warnings"] == record.warnings
    assert (tmp_path / "run" / "metrics.csv").exists()  # the others are not touched by it


def test_csv_and_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    more = ["logger.extra=[tensorboard]", "logger.csv=true", f"run_dir={tmp_path}/run", "trainer.max_steps=3"]
    attnzoo.train(attnzoo.compose("train", [*TINY, *more]))
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [float(row["train_loss_nats"]) for row in rows] == [line["train_loss_nats"] for line in lines]
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    events = board.Scalars("train_loss_nats")
    assert [event.step for event in events] == [1, 2, 3]
    assert [event.value for event in events] == pytest.approx([line["train_loss_nats"] for line in lines], rel=1e-6)


def test_a_missing_package_is_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("attnzoo.loggers.tensorboard.find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"logger.extra: tensorboard: the package tensorboard is missing"):
        attnzoo.compose("train", [*TINY, "logger.extra=[tensorboard]", f"run_dir={tmp_path}/run"])
    with pytest.raises(RequestError, match=r"did you mean '?tensorboard"):
        attnzoo.compose("train", [*TINY, "logger.extra=[tensorbord]"])


def test_another_logger_is_the_same_run(tmp_path):
    from attnzoo.measure.record import config_hash
    from attnzoo.training.again import flat_settings
    from attnzoo.training.config import to_dict

    (tmp_path / "mine.py").write_text(LINES)
    plain, more = (
        attnzoo.compose("train", [*TINY, *extra]) for extra in ([], [f"logger.extra=[{tmp_path}/mine.py:Lines]"])
    )
    assert more.code["logger:Lines"]["class"] == "Lines"
    assert config_hash(to_dict(plain)) == config_hash(to_dict(more))
    assert flat_settings(plain) == flat_settings(more)


def test_a_mark_that_cannot_be_read_starts_anew(tmp_path):
    calls = []
    cls = type("Quiet", (Logger,), {"log": lambda self, step, numbers: calls.append(step)})
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "loggers.json").write_text("{")
    handed = Handed("quiet", cls(None), tmp_path, {}, 0)
    for step in (1, 1, 2):
        handed.log_metrics({"a": step}, step)
    assert calls == [1]
    handed.finish({"status": "failed"})
    assert calls == [1, 2]


@pytest.mark.parametrize("name", components.built_in("logger"))
def test_built_in_loggers_pass_the_checks_of_their_kind(name):
    report = check_component(components.get("logger", name), {})
    statuses = {result.status for result in report.results}
    assert statuses == ({"refused"} if components.get("logger", name).why_not() else {"passed"}), report


def planted(**body):
    return type(
        "Planted", (Logger,), {"__doc__": "One.", "source": "a test", "log": lambda self, step, numbers: None} | body
    )


def exclusive(self, folder, config):
    (folder / "log").touch(exist_ok=False)


@pytest.mark.parametrize(
    ("body", "check"),
    [
        ({"log": lambda self, step, numbers: int(numbers.get("train_loss_nats", 0))}, "takes_what_a_run_has"),
        ({"finish": lambda self, record: record["quality"]}, "ends_early"),
        ({"start": exclusive}, "goes_on"),
        ({"log": lambda self, step, numbers: numbers.pop("tokens")}, "leaves_its_input"),
        ({"finish": lambda self, record: open("log.txt", "w").close()}, "stays_in_its_folder"),
        ({}, None),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_planted_fault_is_found(body, check, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = check_component(planted(**body), {})
    assert (check in report.failed_checks()) if check else report.passed, report
    assert "it has no log" in type("Silent", (Logger,), {"__doc__": "One.", "source": "a"}).definition_faults()


def test_nothing_heavy_is_imported_for_the_names():
    assert "tensorboard" in components.names("logger")
    assert sys.version_info >= (3, 11)
