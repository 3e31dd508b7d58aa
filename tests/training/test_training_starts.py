"""The folder of a run: what is looked at, removed, written whole; what the starts say of themselves, and how each ended."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from helpers import tiny
from safetensors import safe_open

from attnzoo.errors import Refused, RequestError, Stopped
from attnzoo.files import read_json_lines as read_lines
from attnzoo.loggers.csv import write_rows
from attnzoo.measure.record import Record, config_hash
from attnzoo.model import build_model
from attnzoo.tasks import build_task
from attnzoo.training import notes as notes_module
from attnzoo.training import run as run_module
from attnzoo.training import train
from attnzoo.training.callbacks import EndBetweenSteps
from attnzoo.training.closing import close, failed, how_it_stopped, stopped_by
from attnzoo.training.config import to_dict, to_yaml
from attnzoo.training.fit import QUIET_LOGGERS, fit
from attnzoo.training.folder import RunFolder, few
from attnzoo.training.log import HEADER, last_traceback
from attnzoo.training.loggers import JsonLines, WandbLogger
from attnzoo.training.notes import Notes, notes, precision_of, say_how_it_starts
from attnzoo.training.stopping import Stopping


def test_what_is_written_over_is_moved_there_whole(tmp_path):
    """A second name of each old file still holds it: none was opened and written anew, so none can be found half written."""
    cfg = tiny(tmp_path / "run", task="text", max_steps=2)
    cfg.logger.csv = True
    train(cfg)
    files = [
        p for p in (tmp_path / "run").rglob("*") if p.is_file() and p.name not in (".lock", "log.txt", "data.json")
    ]
    names = {
        "config.yaml",
        "record.json",
        "metrics.jsonl",
        "metrics.csv",
        "last.ckpt",
        "model.safetensors",
        "loggers.json",
    }
    assert {p.name for p in files} == names
    before = {p: p.read_bytes() for p in files}
    for p in files:
        os.link(p, tmp_path / p.name)
    cfg.trainer.max_steps = 3
    record = train(cfg)
    for p in files:
        assert (tmp_path / p.name).read_bytes() == before[p] != p.read_bytes(), p.name
        assert not os.path.samefile(tmp_path / p.name, p)
    with safe_open(tmp_path / "run/checkpoints/model.safetensors", "pt") as weights:
        assert weights.metadata()["config_hash"] == record.config_hash == config_hash(to_dict(cfg))


def test_starting_over_removes_all_of_a_run_and_nothing_else(tmp_path):
    own = ("record.json", "metrics.jsonl", "metrics.csv", "log.txt", "data.json")
    for name in (*own, "config.yaml", "mine.txt", "wandb/run/x", "elsewhere/kept"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    RunFolder(tmp_path).clear()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.yaml", "elsewhere", "mine.txt"]
    assert (tmp_path / "elsewhere/kept").exists()  # a link is removed, not what it leads to


def test_differences_are_shown_up_to_six():
    assert few([str(n) for n in range(6)]) == [str(n) for n in range(6)]
    assert few([str(n) for n in range(9)]) == [*(str(n) for n in range(6)), "and 3 more"]


@pytest.fixture
def there(tmp_path):
    """A run of 4 steps, its folder, and a function that looks at it as a configuration would."""
    train(tiny(tmp_path / "run", max_steps=4))
    return tmp_path / "run", lambda **changes: RunFolder.inspect(tiny(tmp_path / "run", **{"max_steps": 4, **changes}))


def test_a_folder_is_looked_at(there):
    folder, look = there
    assert look().finished
    assert not look(restart=True).finished
    assert (look(max_steps=5).resume_step, look(max_steps=5).resume_from) == (4, folder / "checkpoints/last.ckpt")
    assert look(max_steps=5).saved["starts"][0]["to_step"] == 4
    many = {
        "batch_size": 3,
        "accumulate": 2,
        "muon_lr": 1.0,
        "adamw_lr": 1.0,
        "weight_decay": 1.0,
        "grad_clip": 3.0,
        "seed": 1,
    }
    with pytest.raises(RequestError, match="another configuration") as caught:
        look(**many)
    assert len(caught.value.reasons) == 7
    assert caught.value.reasons[-1] == "and 1 more"
    checkpoint = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)
    torch.save(checkpoint | {"global_step": 7}, folder / "checkpoints/last.ckpt")  # of a longer run, broken off
    assert look(max_steps=7).resume_step == 7
    with pytest.raises(RequestError, match="trained for 7 steps"):
        look(max_steps=6)
    record = Record.load(folder / "record.json")
    record.update(config_hash="another")
    record.save(folder / "record.json")
    assert not look(max_steps=7).finished
    del record["config_hash"]
    record.save(folder / "record.json")
    assert look().finished  # of before: its configuration says what it is
    (folder / "record.json").write_text("{")
    assert look(restart=True).there is not None  # removed like a whole one
    with pytest.raises(RequestError):
        look()


def test_what_another_process_finished_before_the_lock_was_ours_is_kept(tmp_path, monkeypatch, capfd):
    train(tiny(tmp_path / "done"))
    real = run_module.locked

    @contextmanager
    def locked(folder, patience):
        with real(folder, patience):
            shutil.copytree(tmp_path / "done", folder, dirs_exist_ok=True)
            yield

    monkeypatch.setattr(run_module, "locked", locked)
    monkeypatch.setattr(run_module, "attempt", lambda *_: pytest.fail("it was trained again"))
    assert train(tiny(tmp_path / "run")).status == "ok"
    assert "finished (ok) and kept" in capfd.readouterr().err


# -- what the starts leave -----------------------------------------------------------------------------------------------


def test_a_start_says_what_it_was(monkeypatch):
    clock = iter([10.0, 12.5, 14.0, 15.0])
    monkeypatch.setattr(notes_module.time, "monotonic", lambda: next(clock))
    known = Notes(
        [{"status": "ok"}], [{"max_steps": 2}], "bf16", "cpu", 9, 2, None, 2, "then", notes_module.time.monotonic()
    )
    held = known.at(4, "sdpa/x")
    running = held["starts"][1]
    assert {key: running[key] for key in running if key not in ("end", "threads")} == {
        "start": "then", "seconds": 2.5, "from_step": 2, "to_step": 4, "max_steps": 9, "status": "killed", "precision": "bf16",
        "device": "cpu", "kernels": {"training": "sdpa/x"},
    }  # fmt: skip
    assert (running["threads"], running["end"] >= "2") == (torch.get_num_threads(), True)
    assert held | {"starts": 0} == {"starts": 0, "history": [{"max_steps": 2}], "precision": "bf16", "kernel": "sdpa/x"}
    assert held["starts"][0] == {"status": "ok"}
    assert known.at(5, None)["kernel"] == "sdpa/x"  # of a start with no step yet
    ended = known.entry("ok", {"decoding": "y"})
    assert (ended["to_step"], ended["kernels"], ended["seconds"]) == (5, {"decoding": "y"}, 5.0)


def test_what_is_known_when_a_start_begins(tmp_path):
    one, two = {"to_step": 1}, {"to_step": 2}
    old = Record(status="failed", starts=[one], history=[{"max_steps": 2}], kernel_resolved="old")
    saved = {"starts": [one, two], "history": [], "kernel": "saved", "precision": "bf16"}

    def begun(old=old, saved=saved, there=4, resume=True, **trainer):
        cfg = tiny(max_steps=4, **trainer)
        folder = RunFolder(
            tmp_path,
            tiny(max_steps=there),
            old,
            resume_from=tmp_path / "x" if resume else None,
            resume_step=3,
            saved=saved,
        )
        return cfg, folder, notes(cfg, folder, "cpu", "fp32")

    _, _, known = begun()
    assert (known.starts, known.history, known.kernel) == ([one, two], [{"max_steps": 2}], "saved")
    assert (known.step, known.from_step, known.max_steps, known.precision, known.device) == (3, 3, 4, "fp32", "cpu")
    assert begun(saved={"starts": []})[2].starts == [one]
    assert begun(saved={})[2].kernel == "old"
    assert begun(old=Record(kernel_resolved="not run yet"), saved={})[2].kernel is None
    assert begun(restart=True)[2].starts == []
    assert begun(resume=False)[2].history == []
    assert begun(resume=False)[2].kernel is None
    grown = {"max_steps": 3, "to_step": 3, "status": "failed"}
    assert begun(there=3)[2].history == [{"max_steps": 2}, grown]
    assert begun(there=3, old=Record())[2].history == [grown | {"status": "killed"}]
    assert begun(there=2)[2].history == [{"max_steps": 2}]  # it stands there already
    asked = [precision_of(*begun(saved=saved, resume=resume)[:2], "cpu")[0] for resume in (True, False)]
    assert asked == ["bf16", "fp32"]
    measured = Record(environment={"precision": "bf16"})
    assert precision_of(*begun(old=measured, saved={})[:2], "cpu")[0] == "bf16"
    assert (
        precision_of(*begun(old=measured, saved={"precision": "fp32"})[:2], "cpu")[0] == "fp32"
    )  # the checkpoint's first
    assert "which would be fp32" in precision_of(*begun()[:2], "cpu")[1]


def test_how_it_starts_is_said(tmp_path, capfd):
    def said(cfg, folder, precision="fp32"):
        say_how_it_starts(cfg, folder, Notes([], [], precision, "cpu", 6))
        return capfd.readouterr().err

    cfg, checkpoint = tiny(max_steps=6), tmp_path / "x"
    assert said(cfg, RunFolder(tmp_path)) == ""
    there = RunFolder(tmp_path, cfg)
    assert "starts at step 0: the run that is there was ended before its first checkpoint" in said(cfg, there)
    assert "(failed) has no checkpoint" in said(cfg, RunFolder(tmp_path, cfg, Record(status="failed")))
    going = RunFolder(tmp_path, cfg, None, resume_from=checkpoint, resume_step=2)
    assert said(cfg, going).endswith("goes on from step 2 of 6\n")
    assert "goes on from step 2 of 6; in bf16, as it was started" in said(cfg, going, "bf16")
    shorter = RunFolder(tmp_path, tiny(max_steps=4), None, resume_from=checkpoint, resume_step=4)
    assert "goes on from step 4 of 6, which ended at 4 before" in said(cfg, shorter)
    whole = RunFolder(tmp_path, cfg, None, resume_from=checkpoint, resume_step=6)
    assert "trained to step 6 by an earlier start" in said(cfg, whole)
    assert "starts over at step 0" in said(tiny(restart=True), there)


# -- how a start ends ----------------------------------------------------------------------------------------------------


def begun(folder, protected=None):
    """A run as the end of a start finds it."""
    cfg = tiny(folder)
    folder.mkdir(exist_ok=True)
    known = Notes([{"status": "killed"}], [{"max_steps": 2}], "fp32", "cpu", 6, 4)
    record = Record(environment={}, config_hash=config_hash(to_dict(cfg)), kernels={"training": "k"})
    return SimpleNamespace(
        cfg=cfg,
        folder=RunFolder(folder),
        record=record,
        notes=known,
        stop=Stopping(),
        protected=protected,
        doing="in leak tests",
    )


def test_the_end_is_written_whole_and_not_stopped(tmp_path, monkeypatch):
    run, shielded, real = begun(tmp_path / "run"), [], Record.save
    monkeypatch.setattr(Record, "save", lambda self, path: (shielded.append(run.stop.shielded), real(self, path)))
    close(run, "failed", ["why"])
    assert shielded == [True]
    assert not run.stop.shielded
    there = Record.load(run.folder.record)
    assert (there.status, there.reasons, there.history) == ("failed", ["why"], [{"max_steps": 2}])
    assert there.environment.seconds == there.starts[1].seconds
    assert there.environment.end <= there.starts[1].end
    assert [s.status for s in there.starts] == ["killed", "failed"]
    assert (there.starts[1].reasons, there.starts[1].kernels) == (["why"], {"training": "k"})
    assert (run.folder.path / "config.yaml").read_text() == to_yaml(run.cfg)
    (run.folder.path / "config.yaml").write_text("another's")
    close(run, "ok", [])
    assert (run.folder.path / "config.yaml").read_text() == "another's"
    assert "reasons" not in Record.load(run.folder.record).starts[-1]


def test_a_record_that_is_ok_gets_the_start_that_is_not(tmp_path):
    before = Record(status="ok", starts=[{"status": "of before"}], history=[])
    for starts, expected in (([{"status": "a"}], ["a", "failed"]), ([], ["of before", "failed"])):
        run = begun(tmp_path / "run", protected=before)
        run.notes.starts = starts
        close(run, "failed", [])
        there = Record.load(run.folder.record)
        assert (there.status, [s.status for s in there.starts]) == ("ok", expected)
        assert not (run.folder.path / "config.yaml").exists()


def test_each_traceback_is_kept_and_the_last_is_shown(tmp_path):
    run = begun(tmp_path / "run")
    assert failed(run, Refused("no", ["because"])).status == "refused"
    assert "error" not in run.record
    assert not run.folder.log.exists()
    assert last_traceback(run.folder.log) == ""
    for error in (ValueError("first"), KeyError("second")):
        with pytest.raises(type(error)) as raised:
            raise error
        assert failed(run, raised.value).status == "failed"
    log = run.folder.log.read_text()
    assert log.count(HEADER) == 2
    assert log.index("ValueError: first") < log.index("KeyError: 'second'")
    assert last_traceback(run.folder.log).startswith("Traceback")
    assert "first" not in last_traceback(run.folder.log)
    assert "second" in last_traceback(run.folder.log)
    assert (run.record.error.type, run.record.error.log) == ("KeyError", "log.txt")


class SIGTERMException(SystemExit):
    """As Lightning has one."""


def test_which_signal_it_was_and_what_is_said_of_it(tmp_path):
    ends = (Stopped(signal.SIGTERM), KeyboardInterrupt(), SIGTERMException(), SystemExit(3))
    assert [stopped_by(end) for end in ends] == [signal.SIGTERM, signal.SIGINT, signal.SIGTERM, None]
    run = begun(tmp_path)
    where = "stopped by SIGTERM in leak tests, at step 4 of 6; the same command goes on from there"
    assert how_it_stopped(run, signal.SIGTERM) == where
    run.notes.step = 0
    assert how_it_stopped(run, 10) == "stopped by 10 in leak tests, at step 0 of 6; the same command starts at step 0"


def test_what_may_end_when():
    stop = Stopping()
    with stop.shield():
        with stop.shield():
            pass
        stop.handle(signal.SIGINT, None)  # still within the outer one
    assert stop.signum == signal.SIGINT
    with pytest.raises(Stopped, match="Ctrl-C"):
        stop.check()
    stop = Stopping()
    with stop.between_steps():
        stop.handle(signal.SIGTERM, None)
        stop.handle(signal.SIGINT, None)  # the same key, told twice
        stop.since -= 6
        with pytest.raises(Stopped, match="SIGTERM"):  # of the first
            stop.handle(signal.SIGINT, None)
    stop = Stopping()
    with stop.between_steps():
        pass
    with pytest.raises(Stopped):
        stop.handle(signal.SIGINT, None)


def test_a_signal_that_lightning_took_is_taken_back_and_a_foreign_one_is_not():
    stop, signums = Stopping(), (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(signum) for signum in signums]

    class Lightnings:
        """As Lightning has one: it calls the handlers that were there."""

        def __init__(self, *handlers):
            self.signal_handlers = handlers

        def __call__(self, *_):
            pass

    theirs = Lightnings(print)
    try:
        signal.signal(signal.SIGINT, Lightnings(stop.handle))
        signal.signal(signal.SIGTERM, theirs)
        EndBetweenSteps(stop).on_fit_start(None, None)
        assert [signal.getsignal(signum) for signum in signums] == [stop.handle, theirs]
    finally:
        for signum, handler in zip(signums, before, strict=True):
            signal.signal(signum, handler)
    trainer = SimpleNamespace(should_stop=None)
    EndBetweenSteps(stop).on_train_batch_end(trainer)
    assert trainer.should_stop is False


def test_without_a_checkpoint_nothing_is_written_and_loggers_stay_as_they_were(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    levels = {name: logging.getLogger(name).level for name in QUIET_LOGGERS}
    logging.getLogger(QUIET_LOGGERS[0]).setLevel(logging.ERROR)
    try:
        cfg = tiny(max_steps=1)
        task = build_task(cfg.task, cfg.data, 0)
        fit(build_model(cfg, task.vocab_size), task, cfg.trainer, seed=0)
        assert logging.getLogger(QUIET_LOGGERS[0]).level == logging.ERROR
        assert list(tmp_path.rglob("*")) == []
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def test_a_step_is_one_line_in_each_log(tmp_path):
    log = JsonLines(tmp_path / "m.jsonl")
    for step, values in ((1, {"a": 1.0}), (2, {"a": 2.0}), (2, {"b": float("inf")}), (3, {"a": 4.0})):
        log.log_metrics(values, step)
    lines = [{"step": 1, "a": 1.0}, {"step": 2, "a": 2.0, "b": None}, {"step": 3, "a": 4.0}]
    assert read_lines(tmp_path / "m.jsonl") == lines
    log.finalize("failed")
    write_rows(tmp_path / "m.csv", read_lines(tmp_path / "m.jsonl"))
    assert (tmp_path / "m.csv").read_text() == "step,a,b\n1,1.0,\n2,2.0,\n3,4.0,\n"
    with (tmp_path / "m.jsonl").open("a") as file:
        file.write('[1]\n{"step": "4"}\n{"step": 5}\n')
    assert [row["step"] for row in read_lines(tmp_path / "m.jsonl")] == [1, 2, 3, 5]
    JsonLines(tmp_path / "m.jsonl", keep_until=3).log_metrics({"c": 1}, 3)  # the step it goes on from is scored again
    assert read_lines(tmp_path / "m.jsonl")[-1] == {"step": 3, "a": 4.0, "c": 1}
    JsonLines(tmp_path / "m.jsonl")
    assert (tmp_path / "m.jsonl").read_text() == ""
    sent = []
    WandbLogger(SimpleNamespace(log=sent.append, id="x")).log_metrics({"a": 1.0}, 7)
    assert sent == [{"step": 7, "a": 1.0}]
