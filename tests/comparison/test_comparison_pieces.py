"""Pieces of a comparison by themselves: children and their stop, records of cells, the plan's file, timing, what is said."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import attnzoo
from attnzoo import processes
from attnzoo.comparison import children as children_module
from attnzoo.comparison import rounds as rounds_module
from attnzoo.comparison import run as run_module
from attnzoo.comparison import timing as timing_module
from attnzoo.comparison.account import Account
from attnzoo.comparison.cells import _closed, _planned
from attnzoo.comparison.children import Children, Ended, call_alone, end, innermost_frame
from attnzoo.comparison.plan import cell_config, plan, write_plan, write_time
from attnzoo.comparison.rounds import all_rounds, keep_history
from attnzoo.comparison.run import Progress, summary_line
from attnzoo.comparison.sweep import MOST_CELLS, Job, _cell, expand, plan_sweep
from attnzoo.errors import AttnzooError, RequestError
from attnzoo.measure.record import Record
from attnzoo.training.config import to_dict, to_yaml

WORDS = ["experiment=tiny", "logger=disabled", "trainer.precision=fp32"]


def asked(folder, *more: str):
    return plan(attnzoo.compose("compare", [*without(more), f"run_dir={folder}", *more]))


def without(more) -> list[str]:
    """The settings that are not asked for in another way."""
    keys = {word.partition("=")[0] for word in more}
    return [word for word in WORDS if word.partition("=")[0] not in keys]


# -- children ------------------------------------------------------------------------------------------------------------


class Child:
    """A process that needs so many waits to end, and what was done to it."""

    def __init__(self, log: list, name: str = "", late: int = 0) -> None:
        self.log, self.name, self.late = log, name, late

    def wait(self, timeout=None):
        self.log.append((self.name, "wait", timeout))
        self.late -= 1
        if self.late >= 0:
            raise subprocess.TimeoutExpired("x", timeout or 0)
        return -9

    def send_signal(self, sig):
        self.log.append((self.name, sig))

    def kill(self):
        self.log.append((self.name, "kill"))


def test_a_process_is_interrupted_waited_for_and_then_killed(capfd):
    """A second interruption, once a step had time to end, breaks off one that hangs in it."""
    log, all_of_it, step = [], children_module.GRACE_SECONDS, children_module.STEP_SECONDS
    assert all_of_it >= 10  # a checkpoint is written within
    again = [("", signal.SIGINT), ("", "wait", step), ("", signal.SIGINT), ("", "wait", all_of_it - step)]
    for late, done in ((0, again[:2]), (1, again), (2, [*again, ("", "kill"), ("", "wait", None)])):
        log.clear()
        assert end(Child(log, late=late)) == -9
        assert log == done
        assert ("did not heed the interruption" in capfd.readouterr().err) == (late == 2)
    log.clear()
    end(Child(log, late=2), asked=True, grace=-3.0)  # no time is left
    assert log == [("", "wait", 0.0), ("", signal.SIGINT), ("", "wait", 0.0), ("", "kill"), ("", "wait", None)]


def test_a_stop_asks_all_before_it_waits_and_grants_them_one_time_in_all(monkeypatch):
    log, children, now = [], Children(), iter([100.0, 100.0, 107.0])
    children.running = [Child(log, "a", late=1), Child(log, "b", late=1)]
    monkeypatch.setattr(children_module.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(children_module, "GRACE_SECONDS", 20.0)
    monkeypatch.setattr(children_module, "STEP_SECONDS", 6.0)
    children.stop()
    assert children.stopped
    waits = [("a", "wait", 6.0), ("a", signal.SIGINT), ("a", "wait", 14.0)]
    waits += [("b", "wait", 6.0), ("b", signal.SIGINT), ("b", "wait", 7.0)]
    assert log == [("a", signal.SIGINT), ("b", signal.SIGINT), *waits]


def test_a_call_is_one_of_those_running_while_it_does(tmp_path, monkeypatch):
    log, children, seen = [], Children(), []

    def start(module, arguments, *, out, err, threads, given, environment):
        seen.append((module, arguments, out is err, threads, given, environment))
        out.write(b"warned\n")
        return Child(log, late=late)

    class Watched(set):
        add = lambda self, child: (log.append("running"), set.add(self, child))[1]  # noqa: E731

    monkeypatch.setattr(processes, "start", start)
    children.running = Watched()
    late, file = 0, tmp_path / "log"
    ended = children.call("m", ["a"], file, given="g", threads=3, environment={"x": "y"})
    assert seen == [("m", ["a"], True, 3, "g", {"x": "y"})]
    assert (ended.status, ended.said, ended.limit) == (-9, "warned\n", None)
    assert log == ["running", ("", "wait", None)]
    assert children.running == set()
    log.clear()
    late, children.stopped = 1, True  # a stop that came while it was being started
    ended = children.call("m", [], file, limit=7.0)
    assert ended.limit == 7.0
    assert log[1:5] == [("", signal.SIGINT), ("", "wait", 7.0), ("", signal.SIGUSR1), ("", signal.SIGINT)]
    assert ended.said == "warned\n"
    assert file.read_text().count("warned\n") == 2
    assert file.read_text().count("--- started again 20") == 1


def test_ctrl_c_ends_one_that_is_called_alone(monkeypatch):
    done = []
    monkeypatch.setattr(Children, "stop", lambda self: done.append("stopped"))
    monkeypatch.setattr(Children, "call", lambda self, *words, **how: done.append((words, how)))
    call_alone("m", ["a"], Path("log"), given="g", limit=5.0)
    assert done == [(("m", ["a"], Path("log")), {"given": "g", "limit": 5.0})]

    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Children, "call", pressed)
    with pytest.raises(KeyboardInterrupt):
        call_alone("m", [], Path("log"), limit=5.0)
    assert done[1:] == ["stopped"]


def test_how_a_process_ended_in_words():
    log = Path("x/log.txt")
    first, last = (
        f'  File "/a/{name}.py", line {n}, in {place}\n'
        for name, n, place in (("one", 1, "outer"), ("two", 2, "inner"))
    )
    said = f"Traceback\n{first}KeyError: 1\n{last}ValueError: last\n\n"
    ended = Ended(1, 2.0, log, said)
    assert ended.why == "exit status 1: ValueError: last (see x/log.txt)"
    assert ended.error() == {"type": "ValueError", "frame": "two.py:2 in inner", "log": "log.txt"}
    assert Ended(3, 1.0, log).error()["type"] == "exit status 3"
    assert Ended(-signal.SIGTERM, 1.0, log).why == "ended by SIGTERM (see x/log.txt)"
    assert Ended(-signal.SIGKILL, 1.0, log).error()["type"] == "SIGKILL"
    assert Ended(0, 1.0, log, limit=9.0).why == "stopped after its time_limit of 9 s (x/log.txt says where it was)"
    assert "and was killed" in Ended(-signal.SIGKILL, 1.0, log, limit=9.0).why
    assert Ended(0, 1.0, log, limit=9.0).error()["type"] == "TimeLimit"
    alone = 'Stack (most recent call first):\n  File "/x/b.py", line 2 in inner\n  File "/x/c.py", line 3 in outer\n'
    assert innermost_frame(alone) == "b.py:2 in inner"


# -- records of cells ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    (cell,) = asked(
        tmp_path_factory.mktemp("cell"), "backends=[sliding_window]", "options.sliding_window.window=7", "seeds=[4]"
    ).cells
    return cell


def test_what_is_known_of_a_cell_that_said_nothing(cell):
    expected = {
        "attention": "sliding_window",
        "options": {"window": 7},
        "seed": 4,
        "config_hash": cell.hash,
        "positions": "auto",
    }
    assert _planned(cell) == expected
    dead = Ended(-9, 1.0, Path("log.txt"))
    record = _closed(cell, dead, None, None, stopped=False)
    assert {key: record[key] for key in expected} == expected
    assert (record.status, record.error.type) == ("failed", "SIGKILL")
    assert _closed(cell, dead, None, None, stopped=True).status == "interrupted"
    late = Ended(-9, 1.0, Path("log.txt"), limit=3.0)
    assert _closed(cell, late, None, None, stopped=True).status == "failed"  # by its limit, whatever came then


def test_whose_word_stands_on_how_a_cell_ended(cell):
    closed = {"config_hash": cell.hash, "environment": {"end": "now"}, "seed": 4}
    late, dead, left = Ended(0, 1.0, Path("l"), limit=3.0), Ended(-9, 1.0, Path("l")), Ended(130, 1.0, Path("l"))

    def status(ended, written, earlier=None):
        return _closed(cell, ended, earlier, Record(written) if written else None, stopped=False).status

    assert [status(ended, {**closed, "status": "ok"}) for ended in (late, dead, left)] == ["ok"] * 3
    assert [status(ended, {**closed, "status": "interrupted"}) for ended in (late, dead, left)] == [
        "failed",
        "failed",
        "interrupted",
    ]
    assert status(left, {**closed, "status": "interrupted", "environment": {}}) == "failed"  # of its beginning
    earlier = Record({**closed, "status": "ok"})
    assert status(Ended(0, 1.0, Path("l")), None, earlier) == "ok"
    assert [status(ended, None, earlier) for ended in (left, dead)] == ["failed"] * 2
    assert status(Ended(0, 1.0, Path("l")), None, Record({**closed, "status": "interrupted"})) == "failed"


def test_what_led_to_a_cell_stays_in_its_record(cell):
    earlier = Record(
        status="failed",
        config_hash=cell.hash,
        starts=[1],
        history=[2],
        cost_history=[3],
        quality={"x": 1},
        error={"type": "old"},
    )
    record = _closed(cell, Ended(1, 1.0, Path("l")), earlier, None, stopped=False)
    assert (record.starts, record.history, record.cost_history, record.quality) == ([1], [2], [3], {"x": 1})
    assert record.error.type == "exit status 1"
    other = _closed(cell, Ended(1, 1.0, Path("l")), Record(earlier | {"config_hash": "another"}), None, stopped=False)
    assert (other.starts, other.history, other.cost_history, other.config_hash) == ([1], [2], [3], cell.hash)
    assert "quality" not in other  # of another model
    begun = _closed(cell, Ended(-9, 1.0, Path("l")), earlier, Record(status="failed", starts=[1, 2]), stopped=False)
    assert begun.starts == [1, 2]  # what this start wrote comes first


# -- the plan ------------------------------------------------------------------------------------------------------------


def test_the_plan_says_what_was_asked_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["attnzoo", "compare", "options.sdpa.api_key=hush"])
    planned = asked(
        tmp_path / "out", "backends=[sdpa,linear]", "seeds=[0,3]", "baseline=linear", "jobs=2", "time_limit=9"
    )
    assert (planned.baseline, planned.jobs, planned.time_limit) == ("linear", 2, 9.0)
    cells = [replace(c, swept={"api_key": "hush", "lr": "1"}) for c in planned.cells]
    planned = replace(planned, cells=cells, common={**planned.common, "data.token": "hush"})
    write_plan(planned)
    write_time(tmp_path / "out", {"seconds": 3.0})
    file = tmp_path / "out" / "comparison.json"
    os.link(file, tmp_path / "old")
    before = file.read_text()
    assert "hush" not in before
    write_plan(planned)
    assert (tmp_path / "old").read_text() == before  # moved over, not written anew
    written = json.loads(file.read_text())
    assert written["time"] == {"seconds": 3.0}  # of the start before
    assert written["command"].startswith("attnzoo compare")
    keys = {"run", "attention", "seed", "swept", "config_hash"}
    assert [{key: c[key] for key in ("run", "attention", "seed", "config_hash")} for c in written["cells"]] == [
        {"run": c.run, "attention": c.cfg.attention.name, "seed": c.cfg.seed, "config_hash": c.hash} for c in cells
    ]
    assert set(written["cells"][0]) == keys
    assert {"run_dir", "jobs", "time_limit", "seed"}.isdisjoint(written["common"])
    assert not [
        key for key in written["common"] if key.startswith(("logger", "options", "attention", "trainer.resume"))
    ]


def test_what_a_later_start_may_set_in_another_way(tmp_path):
    first = asked(tmp_path, "backends=[sdpa]")
    write_plan(first)
    more = ["backends=[linear,sliding_window]", "seeds=[1]", "baseline=linear", "jobs=2", "time_limit=5", "logger.project=other",
            "options.sliding_window.window=5"]  # fmt: skip
    assert len(asked(tmp_path, *more).cells) == 2
    with pytest.raises(RequestError, match="holds another comparison"):
        asked(tmp_path, "backends=[sdpa]", "trainer.accumulate=2")


def test_options_of_a_hybrid_and_names_alike(tmp_path):
    planned = asked(
        tmp_path / "out",
        "backends=[sliding_window+sdpa,sdpa]",
        "options.sliding_window.window=5",
        "model.n_layers=2",
        "logger.group=mine",
    )
    hybrid, plain = (cell.cfg for cell in planned.cells)
    assert hybrid.model.attention_pattern == ["sliding_window", "sdpa"]
    assert hybrid.model.attention_options == {"sliding_window": {"window": 5}, "sdpa": {"kernel": "auto"}}
    assert hybrid.attention.options == {}
    assert not plain.model.attention_pattern
    assert {cell.cfg.logger.group for cell in planned.cells} == {"mine"}
    untimed = asked(tmp_path / "x", "backends=[sdpa]", "measure.timing=false").cells[0]
    assert (untimed.timed, untimed.cfg.measure.enabled) == (False, True)


# -- timing --------------------------------------------------------------------------------------------------------------


def test_cells_take_turns_where_nothing_of_the_timing_differs(tmp_path):
    planned = asked(tmp_path, "backends=[sdpa]", "seeds=[0,1]")
    changes = [("trainer", {"batch_size": 7}), ("trainer", {"device": "cuda"}), ("trainer", {"precision": "bf16"}),
               ("trainer", {"compile": True}), ("task", {"n_tokens": 7}), ("measure", {"rounds": 7})]  # fmt: skip
    for group, change in changes:
        first, second = planned.cells
        other = replace(second, cfg=replace(second.cfg, **{group: replace(getattr(second.cfg, group), **change)}))
        sets = all_rounds(replace(planned, cells=[first, other, first]))
        assert [(rounds.name, len(rounds.cells)) for rounds in sets] == [("timing", 2), ("timing-2", 1)], change
        assert {rounds.baseline for rounds in sets} == {"sdpa"}
    assert [len(rounds.cells) for rounds in all_rounds(planned)] == [2]  # another seed is timed in the same way
    assert all_rounds(replace(planned, cells=[replace(cell, timed=False) for cell in planned.cells])) == []


def test_rounds_ask_for_the_first_cell_of_each_variant_and_for_as_much_time_as_there_are(tmp_path, monkeypatch):
    planned = asked(tmp_path, "backends=[sdpa,linear,exact]", "seeds=[3,4]", "time_limit=100", "measure.seconds=1")
    for cell, status in zip(planned.cells, ["ok", "ok", "ok", "ok", "refused", "oom"], strict=True):
        Record(status=status, cost={}).save(cell.folder / "record.json")
    calls = []

    def call_alone(module, arguments, log, *, given, limit):
        calls.append((arguments, log, json.loads(given), limit))
        Path(arguments[0]).write_text(json.dumps({"id": json.loads(given)["id"]}))
        return Ended(1, 1.0, log, "why\n")  # it broke after it had written

    monkeypatch.setattr(rounds_module, "call_alone", call_alone)
    ((seconds, fault),) = [rounds.run(planned) for rounds in all_rounds(planned)]
    assert (seconds, "why" in fault) == (1.0, True)
    ((arguments, log, given, limit),) = calls
    assert (arguments, log, limit) == ([str(tmp_path / "timing.json")], tmp_path / "timing.log", 200.0)
    assert {name: values["seed"] for name, values in given["variants"].items()} == {"sdpa": 3, "linear": 3}
    assert given["variants"]["linear"] == json.loads(json.dumps(to_dict(planned.cells[2].cfg)))
    assert "timing_id" not in Record.load(planned.cells[0].folder / "record.json").cost


def test_new_timings_take_the_place_of_all_old_ones():
    parts = ("train_step_ms", "train_tokens_per_s", "prefill_ms", "decode_ms_per_token", "length_sweep")
    record = Record(
        cost={**dict.fromkeys(parts, 1), "timing_id": "a", "timing_environment": 1, "failed": ["x"], "parameters": 5}
    )
    timed = {
        "cost": {"v": {"train_step_ms": {"median": 2.0}}},
        "id": "b",
        "baseline": "base",
        "environment": {"threads": 2},
    }
    rounds_module._put_in(record, timed, "v", ["v-seed0"])
    assert record.cost == {
        "parameters": 5, "train_step_ms": {"median": 2.0}, "timing_id": "b", "timing_baseline": "base",
        "timing_shared_by": ["v-seed0"], "timing_environment": {"threads": 2},
    }  # fmt: skip
    assert record.cost_history == [{**dict.fromkeys(parts, 1), "timing_id": "a", "timing_environment": 1}]
    assert "warnings" not in record
    anew = Record(cost={"train_step_ms": 3})
    keep_history(Record(cost={"train_step_ms": 1, "timing_id": "a"}), anew)
    assert "cost_history" not in anew  # it was timed by itself
    nothing = Record(cost={})
    keep_history(Record(cost={"parameters": 1}), nothing)
    assert "cost_history" not in nothing


def test_the_process_that_times_says_what_it_did(tmp_path, monkeypatch, capsys):
    began = []
    monkeypatch.setattr(timing_module, "end_with_parent", lambda: began.append("parent"))
    monkeypatch.setattr(timing_module, "show_stacks", lambda: began.append("stacks"))
    monkeypatch.setattr(timing_module, "time_variants", lambda variants, baseline: {"cost": [variants, baseline]})
    clock = iter([1.0, 3.5])
    monkeypatch.setattr(timing_module.time, "monotonic", lambda: next(clock))
    given = json.dumps({"id": "i", "baseline": "b", "variants": {"v": 1}})
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    assert timing_module.main(str(tmp_path / "out")) == 0
    assert json.loads((tmp_path / "out").read_text()) == {
        "cost": [{"v": 1}, "b"],
        "id": "i",
        "baseline": "b",
        "seconds": 2.5,
    }
    assert began == ["parent", "stacks"]

    def wrong(*_):
        raise AttnzooError("no device")

    monkeypatch.setattr(timing_module, "time_variants", wrong)
    monkeypatch.setattr(timing_module.time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(sys, "stdin", io.StringIO(given))
    assert timing_module.main(str(tmp_path / "none")) == 1
    assert capsys.readouterr().err == "no device\n"
    assert not (tmp_path / "none").exists()


def test_models_are_timed_over_length_in_the_same_way(tmp_path, monkeypatch, capsys):
    from attnzoo.measure import cost, length

    seen = {}

    def time_models(models, **how):
        seen["rounds"] = how
        return {name: {"train_step_ms": name} for name in models}

    def length_sweep(models, **how):
        seen["lengths"] = ([m.attention_modules()[0].name for m in models.values()], how)
        return {name: [name] for name in models}

    monkeypatch.setattr(cost, "time_models", time_models)
    monkeypatch.setattr(length, "length_sweep", length_sweep)
    words = [
        "backends=[sdpa,linear]",
        "measure.lengths=[8,16]",
        "trainer.precision=bf16",
        "task.n_tokens=24",
        "trainer.device=cpu",
    ]
    variants = {c.variant: to_dict(c.cfg) for c in asked(tmp_path, *words).cells}
    timed = timing_module.time_variants(variants, "absent")
    assert timed["cost"] == {name: {"train_step_ms": name, "length_sweep": [name]} for name in ("sdpa", "linear")}
    assert seen["rounds"]["baseline"] is None
    assert seen["rounds"]["task_shape"] == (2, 24)
    names, how = seen["lengths"]
    assert names == ["sdpa", "linear"]
    assert how["precision"] == seen["rounds"]["precision"] == timed["environment"]["precision"] == "bf16"
    assert how["measure"] == seen["rounds"]["measure"]
    assert how["measure"].lengths == [8, 16]
    kept = {"attnzoo", "torch", "device", "device_name", "cpu", "threads", "precision", "git_commit", "start"}
    assert kept <= set(timed["environment"])
    lengths = seen.pop("lengths")
    without_lengths = {
        name: {**values, "measure": values["measure"] | {"lengths": []}} for name, values in variants.items()
    }
    assert "length_sweep" not in timing_module.time_variants(without_lengths, "sdpa")["cost"]["sdpa"]
    assert lengths
    assert "lengths" not in seen
    broken = {"x": variants["sdpa"] | {"model": variants["sdpa"]["model"] | {"n_heads": 5}}}
    found = timing_module.time_variants(broken, "x")  # none is left to be timed
    assert found["cost"]["x"]["train_step_ms"]["median"] is None
    assert "Traceback" in capsys.readouterr().err


# -- what is said --------------------------------------------------------------------------------------------------------


def test_a_line_a_cell(capsys):
    ok = Record(
        status="ok",
        environment={"seconds": 41.4},
        quality={"val_bits_per_byte": 2.5, "task_accuracy": {"recall": 0.987}},
    )
    assert summary_line(ok) == "2.500 bits per byte, recall 0.99, 41 s"
    assert summary_line(Record(ok | {"leak": {"passed": True}})).endswith("no leak, 41 s")
    assert summary_line(Record(ok | {"leak": {"passed": False}})).endswith("LEAKS, 41 s")
    assert summary_line(Record(status="refused", reasons=["a", "b"])) == "refused: a; b"
    account = Account(1)
    said = Progress(5, 2, account)
    said(
        SimpleNamespace(run="x-seed0"),
        Record(ok | {"environment": {"seconds": 1.0, "stage_seconds": {"train": 2.0}}}),
        9.0,
    )
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "2 of 5 cells were finished before and are kept"
    assert lines[1].startswith("[3/5] x-seed0: 2.500 bits per byte")
    assert (account.busy, account.stages) == (9.0, {"train": 2.0})
    assert Progress(5, 0, account).ended == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "ended",
    [Ended(0, 1.0, Path("s.log"), "warned\n"), Ended(3, 1.0, Path("s.log")), Ended(0, 1.0, Path("s.log"), limit=9.0)],
)
def test_the_summary_for_wandb_is_of_the_same_project(tmp_path, monkeypatch, capsys, ended):
    calls = []
    monkeypatch.setattr(run_module, "call_alone", lambda *words, **how: calls.append((words, how)) or ended)
    for group, words in (("", []), ("mine", ["logger.group=mine"])):
        calls.clear()
        planned = asked(tmp_path / f"out{group}", "backends=[sdpa]", "logger=online", "logger.project=p", *words)
        run_module._log_summary(planned)
        (((module, arguments, log), how),) = calls
        assert module == "attnzoo.report.wandb_summary"
        assert arguments == [str(planned.folder), "online", "p", group or planned.folder.name]
        assert (log, how) == (planned.folder / "summary.log", {"limit": 300.0})
    said = capsys.readouterr().err
    assert ("warned" in said) == bool(ended.said)
    assert ("the summary for W&B" in said) == bool(ended.status or ended.limit)


def test_a_start_accounts_for_its_time_and_writes_the_report_whatever_was_done(tmp_path, monkeypatch, capsys):
    ran = []

    def run_cells(cells, jobs, say, limit, devices):
        for cell in cells:
            Record(
                status="ok", config_hash=cell.hash, attention="sdpa", seed=cell.cfg.seed, environment={"seconds": 1.0}
            ).save(cell.folder / "record.json")
            say(cell, Record.load(cell.folder / "record.json"), 4.0)

    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(run_module, "run_cells", run_cells)
    monkeypatch.setattr(run_module, "_loaded", lambda cells: nullcontext())
    monkeypatch.setattr(run_module, "write_report", ran.append)
    monkeypatch.setattr(run_module, "_log_summary", lambda plan: ran.append("wandb"))
    rounds = [SimpleNamespace(run=lambda plan: (7.0, "")), SimpleNamespace(run=lambda plan: (5.0, ""))]
    monkeypatch.setattr(run_module, "all_rounds", lambda plan: rounds)
    planned = asked(tmp_path / "out", "backends=[sdpa]", "seeds=[0,1]", "logger=offline")
    run_module.carry_out(planned, started=-1000.0)
    assert ran == [planned.folder, "wandb"]
    time = json.loads((planned.folder / "comparison.json").read_text())["time"]
    assert (time["measuring"], time["free_jobs"]) == (12.0, 2.0)  # both sets of rounds; 10 s around 2 cells of 4 s
    assert time["seconds"] >= 1000
    rounds[:] = [SimpleNamespace(run=lambda plan: (0.0, ""))]
    run_module.carry_out(planned)
    assert json.loads((planned.folder / "comparison.json").read_text())["time"] == time  # nothing was done
    rounds[:] = [SimpleNamespace(run=lambda plan: (3.0, ""))]
    run_module.carry_out(planned)
    assert json.loads((planned.folder / "comparison.json").read_text())["time"]["measuring"] == 3.0
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RequestError, match="WORLD_SIZE=2"):
        run_module.carry_out(planned)


def test_a_comparison_that_cannot_run_here_is_not_planned(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    cfg = attnzoo.compose("compare", [*WORDS, "backends=[sdpa]", f"run_dir={tmp_path / 'out'}"])
    cfg.run_dir = str(tmp_path / "file" / "out")
    with pytest.raises(RequestError, match="a folder is needed"):
        attnzoo.compare(cfg)
    cfg.run_dir, cfg.trainer.init_from = str(tmp_path / "out"), str(tmp_path / "nowhere")
    with pytest.raises(RequestError, match="no trained model there"):
        attnzoo.compare(cfg)


def test_secrets_are_in_no_folder_name():
    job = Job(["x"], {"seed": "1", "attention.api_key": "hush"})
    assert "hush" not in job.name + job.label
    long = Job([], {"k": "v" * 158})  # k= and 158 are 160
    assert job.name != long.name
    assert long.name_before == long.label
    assert len(Job([], {"k": "v" * 159}).name_before) == 167


# -- which cells there are -------------------------------------------------------------------------------------------------


def test_a_cell_goes_on_by_itself_and_is_there_only_as_what_it_is(tmp_path):
    (cell,) = asked(
        tmp_path, "backends=[sliding_window]", "options.sliding_window.window=7", "trainer.resume=true"
    ).cells
    assert not cell.cfg.trainer.resume
    assert not cell.is_there()
    cell.folder.mkdir(parents=True)
    (cell.folder / "config.yaml").write_text(to_yaml(cell.cfg))
    assert cell.is_there()
    other = replace(cell, cfg=replace(cell.cfg, attention=replace(cell.cfg.attention, options={"window": 9})))
    assert not other.is_there()


def test_options_that_no_cell_has_used_may_change_and_go_before_those_of_the_attention(tmp_path):
    words = ["backends=[sliding_window]", "options.sliding_window.window="]
    write_plan(asked(tmp_path, words[0], words[1] + "7"))
    (cell,) = asked(tmp_path, words[0], words[1] + "9").cells
    assert cell.cfg.attention.options["window"] == 9
    cfg = attnzoo.compose("compare", [*WORDS, "backends=[sliding_window]", f"run_dir={tmp_path / 'x'}"])
    cfg.attention = replace(cfg.attention, name="sliding_window", options={"window": 3})
    for options, window in (({"sliding_window": {"window": 9}}, 9), ({}, 3)):
        assert plan(replace(cfg, options=options)).cells[0].cfg.attention.options == {"window": window}
    assert plan(replace(cfg, options={}, backends=["sdpa"])).cells[0].cfg.attention.options == {}


def test_names_that_differ_in_capitals_alone_have_folders_that_differ_in_more(tmp_path):
    cfg = attnzoo.compose("compare", [*WORDS, "backends=[sdpa]", f"run_dir={tmp_path}"])
    assert [cell.run for cell in plan(replace(cfg, backends=["Mine"])).cells] == ["Mine-seed0"]
    first, second = plan(replace(cfg, backends=["Mine", "mine"])).cells
    assert (len(first.run), second.run) == (len("Mine-seed0-") + 10, "mine-seed0")
    assert first.cfg.run_dir == str(tmp_path / first.run)


def swept(*more: str):
    return plan_sweep([*without(more), *more])


def test_the_cells_of_a_sweep(tmp_path):
    words = ["model.n_layers=1,2", "seed=0,1", "measure.timing=false", f"run_dir={tmp_path}"]
    planned = swept(*words)
    assert [cell.swept for cell in planned.cells] == [{"model.n_layers": n} for n in "1122"]
    assert [cell.variant for cell in planned.cells] == [f"model.n_layers={n}" for n in "1122"]
    assert planned.baseline == "model.n_layers=1"
    assert not any(cell.timed for cell in planned.cells)
    assert planned.common["swept"] == ["model.n_layers", "seed"]
    assert not {"model.n_layers", "seed"} & set(planned.common)
    assert planned.common["trainer.precision"] == "fp32"
    write_plan(planned)
    with pytest.raises(RequestError, match="holds another comparison"):
        swept(*words, "model.d_model=48")


def test_the_folder_of_a_sweep_is_of_what_is_swept_and_fixed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = swept("seed=0,1").folder
    assert swept("seed=0,1", "jobs=2", "time_limit=9").folder == first
    assert len({first, swept("model.n_layers=1,2").folder, swept("seed=0,1", "model.n_layers=1").folder}) == 3


def test_what_is_one_for_all_cells_of_a_sweep():
    for word in ("logger.group=a,b", "jobs=1,2", "time_limit=1,2", "run_dir=a,b"):
        with pytest.raises(RequestError, match=f"{word.partition('=')[0]} is one for all cells"):
            expand([word])
    assert [job.swept["trainer.muon_lr"] for job in expand(["trainer.muon_lr=range(0,0.5)"])] == ["0.0"]
    assert len(expand([f"seed=range({MOST_CELLS})"])) == MOST_CELLS == 2000


def test_a_cell_under_its_name_of_before_is_found_where_it_is_that_cell(tmp_path):
    job = Job(["x"], {"model.scale": "1/D"})
    cfg = attnzoo.compose("sweep", [*WORDS, "model.scale=1/D", f"run_dir={tmp_path}"])
    assert job.name != job.name_before
    assert _cell(cfg, tmp_path, job).run == job.name
    before = tmp_path / job.name_before
    before.mkdir()
    assert _cell(cfg, tmp_path, job).run == job.name  # an empty folder is nothing
    (before / "config.yaml").write_text(to_yaml(cell_config(cfg, tmp_path, before.name)))
    assert _cell(cfg, tmp_path, job).run == job.name_before
    (tmp_path / job.name).mkdir()
    assert _cell(cfg, tmp_path, job).run == job.name
    (tmp_path / job.name).rmdir()
    (before / "config.yaml").write_text(to_yaml(cell_config(cfg, tmp_path, before.name, seed=4)))
    assert _cell(cfg, tmp_path, job).run == job.name  # the other value of that name
