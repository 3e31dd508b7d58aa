"""Cells whose process is a small script: what becomes of their records, logs and time, however they end."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import threading
import time

import pytest

import attnzoo
from attnzoo.comparison import cells as cells_module
from attnzoo.comparison import children as children_module
from attnzoo.comparison.cells import run_cells
from attnzoo.comparison.children import innermost_frame
from attnzoo.comparison.devices import cuda_devices, device_each
from attnzoo.comparison.plan import plan
from attnzoo.errors import RequestError
from attnzoo.measure.record import Record
from attnzoo.training.config import AttentionConfig

SCRIPT = """
import ctypes, faulthandler, json, os, signal, sys, time
from pathlib import Path
from attnzoo.measure.record import Record, config_hash
from attnzoo.processes import show_stacks

def main(folder, config):
    global path, cfg
    assert config == "-"
    path, cfg = Path(folder) / "record.json", json.load(sys.stdin)
    show_stacks()
    return globals()[os.environ["ENDS"]]()

def write(status="ok", **more):
    environment = {"end": "now", "threads": os.environ.get("OMP_NUM_THREADS"), "seconds": 1.0}
    Record(status=status, config_hash=config_hash(cfg), seed=cfg["seed"], attention=cfg["attention"]["name"],
           environment=environment, **more).save(path)

def looks():
    begun = time.monotonic()
    time.sleep(0.2)
    write(device=os.environ.get("CUDA_VISIBLE_DEVICES"), at=[begun, time.monotonic()])
def well(): write(read=cfg["attention"])
def refused(): write("refused", reasons=["no"])
def says_failed(): write("failed", reasons=["ValueError: in training"], error={"type": "ValueError", "frame": "theirs"})
def nothing(): pass
def deep(): raise ValueError("x" * 1_000_000)
def raises():
    def innermost(): deep()
    innermost()
def leaves(): sys.exit(7)
def os_exit(): print("last words", flush=True); os._exit(9)
def segfault(): ctypes.string_at(0)
def killed(): os.kill(os.getpid(), signal.SIGKILL)
def begun_and_killed():
    Record(status="failed", reasons=["it did not end"], starts=[1], config_hash=config_hash(cfg), environment={}).save(path)
    killed()
def sleeps():
    try: nap()
    except KeyboardInterrupt:
        write("interrupted", reasons=["stopped"], steps=3)
        return 130
def hangs_in_a_step():
    try: nap()
    except KeyboardInterrupt: return sleeps()  # the first waits for the end of the step
def nap(): time.sleep(60)
def deaf():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    nap()
def in_c():
    sum(range(10**12))  # Python would look at signals once C returns

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def composed():
    return attnzoo.compose(
        "compare",
        ["experiment=tiny", "backends=[sdpa,exact,linear]", "trainer.precision=fp32", "seeds=[3,5]", "logger=disabled"],
    )


@pytest.fixture
def run(tmp_path, monkeypatch, composed):
    """run(how it ends, …) -> the record of the first cell, as told and as written."""
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path) + os.pathsep + os.environ.get("PYTHONPATH", ""))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cells_module, "MODULE", "script")
    cells = plan(dataclasses.replace(composed, run_dir=str(tmp_path / "out"))).cells

    def go(ends: str, cells=cells[:1], jobs: int = 1, limit: float | None = None, devices=()) -> Record:
        monkeypatch.setenv("ENDS", ends)
        heard: list = []
        run_cells(cells, jobs, lambda cell, record, seconds: heard.append((cell, record, seconds)), limit, devices)
        assert {cell.run for cell, _, _ in heard} == {cell.run for cell in cells}
        go.heard = heard
        record = Record.load(cells[0].folder / "record.json")
        assert next(r for cell, r, _ in heard if cell is cells[0]).items() <= record.items()
        return record

    go.cells, go.folder = cells, cells[0].folder
    return go


def test_a_cell_gets_its_own_configuration_and_seed(run):
    run("well", cells=run.cells, jobs=2)
    there = [Record.load(cell.folder / "record.json") for cell in run.cells]
    assert [(r.read.name, r.seed) for r in there] == [(n, s) for n in ("sdpa", "exact", "linear") for s in (3, 5)]
    assert [r.config_hash for r in there] == [cell.hash for cell in run.cells]
    assert all(cell.finished() for cell in run.cells)


def test_a_secret_reaches_the_cell_and_no_file(run):
    cell = run.cells[0]
    attention = AttentionConfig("sdpa", {"api_key": "hush"})
    secret = dataclasses.replace(cell, cfg=dataclasses.replace(cell.cfg, attention=attention))
    assert run("well", cells=[secret]).read == {"name": "sdpa", "api_key": "***"}  # hidden where it is written
    assert secret.finished()
    for file in cell.folder.iterdir():
        assert "hush" not in file.read_text()


def test_cells_at_once_see_a_device_each(run, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c")
    devices = device_each(run.cells, 2)
    run("looks", cells=run.cells, jobs=2, devices=devices)
    there = [Record.load(cell.folder / "record.json") for cell in run.cells]
    assert {r.device for r in there} == {"GPU-a", "GPU-b"}
    pairs = [(a, b) for n, a in enumerate(there) for b in there[:n]]
    at_once = [(a, b) for a, b in pairs if a["at"][0] < b["at"][1] and b["at"][0] < a["at"][1]]
    assert at_once
    assert all(a.device != b.device for a, b in at_once)
    assert run("looks", jobs=1, devices=device_each(run.cells, 1)).device == "GPU-a,GPU-b,GPU-c"


def on(cells, device):
    """The cells with another ``trainer.device``."""
    trainer = dataclasses.replace(cells[0].cfg.trainer, device=device)
    return [dataclasses.replace(cell, cfg=dataclasses.replace(cell.cfg, trainer=trainer)) for cell in cells]


def test_more_jobs_than_devices_are_refused(run, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    assert device_each(on(run.cells, "cuda"), 2) == ["0", "3"]
    assert device_each(on(run.cells, "cpu"), 8) == []
    with pytest.raises(RequestError, match="jobs=3: there are 2 CUDA devices, and a cell trains") as refused:
        device_each(on(run.cells, "auto"), 3)
    assert refused.value.reasons == ["jobs=2", "trainer.device=cpu"]
    with pytest.raises(RequestError, match=r"jobs=2 with trainer\.device=cuda:1: all cells would share one device"):
        device_each(on(run.cells, "cuda:1"), 2)
    assert device_each(on(run.cells, "cuda:1"), 1) == []
    for nothing in ("", "-1", "-1,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nothing)
        assert device_each(on(run.cells, "auto"), 3) == []


def test_devices_are_counted_by_nvidia_smi(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cuda_devices() == []
    smi = tmp_path / "nvidia-smi"
    listed = ["GPU 0: A (UUID: GPU-1)", "  MIG 1g Device 0: (UUID: MIG-1)", "GPU 1: A (UUID: GPU-2)"]
    smi.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in listed), ""]))
    smi.chmod(0o755)
    assert cuda_devices() == ["0", "1"]
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert cuda_devices() == []


def test_a_comparison_refuses_them_before_anything_is_started(monkeypatch, tmp_path, composed):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    folder = tmp_path / "out"
    with pytest.raises(RequestError, match="jobs=2: there is 1 CUDA device"):
        attnzoo.compare(dataclasses.replace(composed, run_dir=str(folder), jobs=2))
    assert not (folder / "comparison.json").exists()


def test_threads_are_shared_among_jobs(run, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert run("well", jobs=2).environment.threads == "3"
    assert run("well", jobs=8).environment.threads == "1"
    assert run("well", jobs=1).environment.threads is None


@pytest.mark.parametrize(
    ("ends", "reason", "kind", "frame"),
    [
        ("raises", "exit status 1: ValueError: xxx", "ValueError", r"script.py:\d+ in deep"),
        ("os_exit", "exit status 9: last words", "exit status 9", None),
        ("leaves", "exit status 7: it said nothing", "exit status 7", None),
        ("nothing", "exit status 0: it said nothing", "exit status 0", None),
        ("segfault", "ended by SIGSEGV", "SIGSEGV", r"\w+.py:\d+ in string_at"),
        ("killed", "killed (SIGKILL): on Linux most often the answer to a machine out of memory", "SIGKILL", None),
    ],
)
def test_one_that_leaves_no_record_has_failed_with_the_reason_and_the_place(run, ends, reason, kind, frame):
    record = run(ends)
    assert (record.status, record.attention, record.seed) == ("failed", "sdpa", 3)
    assert record.config_hash == run.cells[0].hash
    (said,) = record.reasons
    assert said.startswith(reason)
    assert len(said) < 1000
    assert record.error.type == kind
    assert record.error.log == "log.txt"
    assert record.error.frame is None if frame is None else re.fullmatch(frame, record.error.frame)
    assert len(json.dumps(record)) < 5000
    assert run.cells[0].finished() is None
    if ends in ("raises", "segfault"):
        assert "script.py" in (run.folder / "log.txt").read_text()  # the whole traceback


def test_what_a_run_says_of_itself_stands(run):
    assert run("says_failed").error.frame == "theirs"
    assert run("refused").status == "refused"
    assert run.cells[0].finished().reasons == ["no"]


@pytest.mark.parametrize("ends", ["raises", "killed", "nothing", "leaves"])
def test_a_record_of_before_is_never_taken_for_this_start(run, ends):
    Record(status="failed", reasons=["before"], config_hash=run.cells[0].hash, starts=[1], error={"frame": "old"},
           environment={"end": "then"}).save(run.folder / "record.json")  # fmt: skip
    record = run(ends)
    assert record.reasons != ["before"]
    assert record.error.frame != "old"
    assert record.starts == [1]  # what led here is kept


@pytest.mark.parametrize("ends", ["killed", "begun_and_killed"])
def test_a_record_of_its_beginning_does_not_say_how_it_ended(run, ends):
    assert "SIGKILL" in run(ends).reasons[0]
    assert run("killed").get("starts") == ([1] if ends == "begun_and_killed" else None)


def test_what_is_finished_is_kept_where_the_process_finds_it_so(run):
    run("well")
    before = (run.folder / "record.json").read_bytes()
    assert run("nothing").status == "ok"
    assert (run.folder / "record.json").read_bytes() == before
    other = Record.load(run.folder / "record.json")
    other.config_hash = "another"
    other.save(run.folder / "record.json")
    assert run("nothing").status == "failed"  # of other settings: not this cell's


def test_nothing_of_an_earlier_start_is_removed_and_its_log_is_kept(run):
    (run.folder / "checkpoints").mkdir(parents=True)
    (run.folder / "checkpoints" / "last.ckpt").write_text("state")
    (run.folder / "config.yaml").write_text("as it was")
    run("raises")
    run("well")
    log = (run.folder / "log.txt").read_text()
    assert log.count("Traceback") == 1
    assert log.index("Traceback") < log.index("--- started again 20")
    assert (run.folder / "checkpoints" / "last.ckpt").read_text() == "state"
    assert (run.folder / "config.yaml").read_text() == "as it was"  # the run's own to write


def test_the_reason_is_of_this_start_alone(run):
    run("raises")
    assert "it said nothing" in run("leaves").reasons[0]


HEED = ("sleeps", "hangs_in_a_step")


@pytest.mark.parametrize(("ends", "place"), [*((ends, "in nap") for ends in (*HEED, "deaf")), ("in_c", "in in_c")])
def test_one_that_takes_too_long_is_stopped_and_the_others_go_on(run, monkeypatch, ends, place):
    monkeypatch.setattr(children_module, "GRACE_SECONDS", 3.0 if ends in HEED else 0.5)
    started = time.monotonic()
    record = run(ends, limit=2.5)
    assert time.monotonic() - started < 20
    assert (record.status, record.error.type) == ("failed", "TimeLimit")
    assert "time_limit of 2.5 s" in record.reasons[0]
    assert ("did not heed" in record.reasons[0]) == (ends not in HEED)
    assert record.error.frame.startswith("script.py:")
    assert record.error.frame.endswith(place)
    assert record.get("steps") == (3 if ends in HEED else None)  # what it wrote when it was interrupted
    assert run("well", limit=60.0).status == "ok"  # tried again, without the error
    assert "error" not in Record.load(run.folder / "record.json")


def test_a_stop_reaches_those_that_run_and_starts_no_other(run, monkeypatch):
    monkeypatch.setenv("ENDS", "sleeps")
    first, second = run.cells[0], run.cells[1]

    def stop_soon():
        while not (first.folder / "log.txt").exists():
            time.sleep(0.05)
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=stop_soon, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_cells([first, second], 1, lambda *_: None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert Record.load(first.folder / "record.json").status == "interrupted"
    assert not (second.folder / "record.json").exists()


def test_at_most_so_many_run_at_once(run, monkeypatch):
    running, most = [], []
    real = children_module.Children.call

    def call(self, *words, **more):
        running.append(1)
        most.append(len(running))
        try:
            return real(self, *words, **more)
        finally:
            running.pop()

    monkeypatch.setattr(children_module.Children, "call", call)
    run("well", cells=run.cells, jobs=2)
    assert max(most) == 2


def test_the_innermost_frame_of_a_traceback_and_of_a_stack():
    stack = (
        'Thread 0x1 (most recent call first):\n  File "/x/a.py", line 1 in watch\n\n'
        'Current thread 0x2 (most recent call first):\n  File "/x/b.py", line 2 in inner\n  File "/x/c.py", line 3 in outer\n'
    )
    assert innermost_frame(stack) == "b.py:2 in inner"
    taken = (
        stack.replace("b.py", "watch.py")
        + "\nThread 0x2 (most recent call first):\n"
        + '  File "/a/c.py", line 9 in nap\n'
    )
    assert innermost_frame(taken, asked=True) == "c.py:9 in nap"
    assert innermost_frame(taken) == "watch.py:2 in inner"
    assert innermost_frame("nothing") is None
