"""Forked processes: as much on their own as fresh ones, and as mortal. The preloaded modules here are small ones."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import attnzoo
from attnzoo import forkserver, processes
from attnzoo.errors import AttnzooError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

WORK = """
import atexit, gc, os, signal, sys, tempfile, time
from pathlib import Path

FOLDER = tempfile.TemporaryDirectory()  # removed by its finalizer and, as W&B does, by atexit
atexit.register(FOLDER.cleanup)
LOADED_BY, BLAS, FILES = os.getpid(), os.environ.get("OPENBLAS_NUM_THREADS"), len(os.listdir("/proc/self/fd"))

def main(what, *words):
    return globals()[what](*words)

def say(*words):
    print(*words)
    print(os.getpid(), LOADED_BY, sys.argv[1:], file=sys.stderr)

def status(n): return int(n)
def leave(): sys.exit("a reason")
def leave_with(n): sys.exit(int(n) if n else None)
def fail(): raise ValueError("a fault")

def last_words():
    atexit.register(print, "the end")
    sys.stdout.write("without a newline ")
def die(): os.kill(os.getpid(), signal.SIGKILL)
def folder(): print(Path(FOLDER.name).is_dir())

def own_folder():
    globals()["OWN"] = tempfile.TemporaryDirectory()
    print(OWN.name)

def threads(): print(os.environ.get("OMP_NUM_THREADS"))
def logs(file):
    import logging.handlers
    target = logging.FileHandler(file)
    logging.getLogger().addHandler(logging.handlers.MemoryHandler(100, target=target))
    logging.warning("said")
def given(): print(sys.stdin.read())
def parent(): print(os.environ["ATTNZOO_PARENT"] == str(os.getppid()))
def nap(): time.sleep(0.3)
def length(text): print(len(text))
def as_loaded(): print(BLAS, gc.get_freeze_count() > 1000, len(os.listdir("/proc/self/fd")) - FILES)
def visible(): print(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("OMP_NUM_THREADS"))
def torch_threads(): print(sys.modules["torch"].THREADS)

def daemon(file):
    import threading
    def later():
        time.sleep(0.3)
        Path(file).write_text("done")
    threading.Thread(target=later).start()

def sleep(file):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(file).write_text(str(os.getpid()))
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        print("interrupted")
        return 130

def again(file):
    from attnzoo import processes
    with open(file, "wb") as out:
        return processes.start("work", ["say", "from", "within"], out=out, err=out).wait()

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
    )
    (tmp_path / "broken.py").write_text("raise ImportError('no such thing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in ("OMP_NUM_THREADS", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@contextmanager
def running(folder: Path, *arguments: str, threads: int | None = None, given: str = "", **more):
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        yield processes.start("work", arguments, out=out, err=err, threads=threads, given=given, **more)


def run(folder: Path, *arguments: str, **more) -> tuple[int, str, str]:
    with running(folder, *arguments, **more) as process:
        status = process.wait(30)
    return status, (folder / "out").read_text(), (folder / "err").read_text()


@pytest.fixture(params=["forked", "fresh"])
def either(request, work):
    """The same holds of both kinds."""
    if request.param == "fresh":
        yield work
        return
    with processes.preloaded("work") as why_not:
        assert why_not == ""
        yield work


def test_output_status_and_arguments(either):
    assert run(either, "say", "a", "b")[1] == "a b\n"
    assert "['say', 'a', 'b']" in run(either, "say", "a", "b")[2]
    assert [run(either, "status", n)[0] for n in "03"] == [0, 3]
    assert run(either, "die")[0] == -signal.SIGKILL


def test_every_way_to_end(either):
    assert [run(either, way)[0] for way in ("leave", "fail")] == [1, 1]
    assert [run(either, "leave_with", n)[0] for n in ("7", "")] == [7, 0]
    assert run(either, "leave")[2] == "a reason\n"
    assert run(either, "fail")[2].endswith("ValueError: a fault\n")
    assert run(either, "last_words")[1] == "without a newline the end\n"


def test_what_it_is_given_its_parent_and_a_long_request(either):
    assert run(either, "given", given="a\nb")[1] == "a\nb\n"
    assert run(either, "parent")[1] == "True\n"
    assert run(either, "nap")[0] == 0  # 30 seconds are waited, no milliseconds
    assert run(either, "length", "x" * 100_000)[1] == "100000\n"
    run(either, "daemon", str(either / "file"))
    assert (either / "file").read_text() == "done"  # threads are waited for


def test_threads_are_the_process_own(either, monkeypatch):
    assert [run(either, "threads", threads=n)[1] for n in (2, None)] == ["2\n", "None\n"]
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # what a person set stands
    assert run(either, "threads", threads=2)[1] != "2\n"


def test_what_is_put_into_its_environment_is_there_for_it_alone(either, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert run(either, "visible", environment={"CUDA_VISIBLE_DEVICES": "1"}, threads=2)[1] == "1 2\n"
    assert run(either, "visible")[1].endswith(" None\n")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.fixture
def heeds_ctrl_c():
    """A background job of a script ignores Ctrl-C, and so would the processes it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_and_kill(either):
    for stop, status, said in ((signal.SIGINT, 130, "interrupted\n"), (signal.SIGKILL, -signal.SIGKILL, "")):
        (either / "started").unlink(missing_ok=True)
        with running(either, "sleep", str(either / "started")) as process:
            wait_for(lambda: (either / "started").is_file())
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.01)
            process.send_signal(stop)
            assert process.wait(30) == status
            process.kill()  # of one that has ended does nothing
            assert process.wait(30) == status
        assert (either / "out").read_text() == said


def test_a_forked_process_has_what_was_loaded_and_is_another(work):
    with processes.preloaded("work"):
        said = [run(work, "say")[2].split()[:2] for _ in range(2)]
    assert said[0][1] == said[1][1]
    assert len({said[0][0], said[1][0], said[0][1], str(os.getpid())}) == 4


def test_what_was_made_at_loading_outlives_the_first_child(work):
    with processes.preloaded("work"):
        assert [run(work, "folder")[1] for _ in range(2)] == ["True\n", "True\n"]


def test_what_a_child_makes_goes_with_it(work):
    with processes.preloaded("work"):
        assert not Path(run(work, "own_folder")[1].strip()).exists()
        assert run(work, "folder")[1] == "True\n"  # what was made before is not its own
        run(work, "logs", str(work / "log"))
        assert (work / "log").read_text() == "said\n"  # held back until the end


def test_a_forked_process_may_ask_for_more(work):
    with processes.preloaded("work"):
        assert run(work, "again", str(work / "inner"))[0] == 0
    assert "from within\n" in (work / "inner").read_text()


def test_one_that_is_not_waited_for_is_ended(work):
    with processes.preloaded("work"):
        with running(work, "sleep", str(work / "started")) as process:
            wait_for(lambda: (work / "started").is_file())
        process.line.close()
        wait_for(lambda: not alive(int((work / "started").read_text())))
        assert run(work, "say")[0] == 0  # the server has forgotten it


def test_without_the_server_an_error_says_so(work):
    with processes.preloaded("work"):
        with running(work, "sleep", str(work / "started")) as process:
            wait_for(lambda: (work / "started").is_file())
        sleeper = int((work / "started").read_text())
        os.kill(int(Path(f"/proc/{sleeper}/stat").read_text().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)
        with pytest.raises(AttnzooError, match="was forked off ended"):
            process.wait(30)
        with pytest.raises(AttnzooError, match="is gone"):
            run(work, "status", "0")
        os.kill(sleeper, signal.SIGKILL)


@pytest.mark.parametrize(
    ("module", "reason"), [("threaded", "started 1 threads"), ("broken", "ImportError: no such thing")]
)
def test_where_forking_is_not_safe_processes_are_fresh(work, module, reason):
    with processes.preloaded(module) as why_not:
        assert reason in why_not
        process, loader = run(work, "say")[2].split()[:2]
    assert process == loader


def test_what_is_loaded_ahead_is_taken_up(work):
    (work / "early.py").write_text("import os\nPID = os.getpid()")
    (work / "work.py").write_text(
        WORK + "\ndef ahead():\n    import early; print(early.PID == LOADED_BY != os.getpid())\n"
    )
    with processes.preloading("early"):
        loader = processes._loader.child.pid
        with processes.preloaded("work") as why_not:
            assert why_not == ""
            assert run(work, "ahead")[1] == "True\n"
            assert run(work, "say")[2].split()[1] == str(loader)
        assert not alive(loader)
        with processes.preloaded("work"):  # another one
            assert run(work, "say")[2].split()[1] != str(loader)


def test_what_was_loaded_ahead_in_vain_ends_at_once(work):
    (work / "slow.py").write_text("import time; time.sleep(60)")
    started = time.monotonic()
    with processes.preloading("slow"):
        loader = processes._loader.child.pid
        assert alive(loader)
    assert not alive(loader)
    assert time.monotonic() - started < processes.GRACE_SECONDS  # it is not waited for


def test_loading_ahead_that_fails_is_told_when_it_is_taken_up(work):
    with processes.preloading("broken"), processes.preloaded("work") as why_not:
        assert "ImportError: no such thing" in why_not


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_neither_the_server_nor_its_children_gather_files(work, capfd):
    (work / "torch.py").write_text(
        "THREADS = cuda = None\nclass cuda: is_available = lambda: False\n"
        "def set_num_threads(n):\n    global THREADS\n    THREADS = n\nprint('said when loaded')"
    )
    with processes.preloading("torch"):
        server = Path(f"/proc/{processes._loader.child.pid}")
        with processes.preloaded("work") as why_not:
            assert why_not == ""
            wait_for(lambda: any("eventpoll" in held for held in files(server)))  # what it waits for requests with
            idle = len(files(server))
            assert run(work, "as_loaded")[1] == "1 True 0\n"
            assert run(work, "torch_threads", threads=3)[1] == "3\n"
            os.kill(int(server.name), signal.SIGINT)  # Ctrl-C is for those who asked
            with running(work, "sleep", str(work / "started")) as process:
                wait_for(lambda: (work / "started").is_file())
                assert run(work, "as_loaded")[1] == "1 True 0\n"  # nothing of its sibling's
                process.kill()
                process.wait(30)
            wait_for(lambda: len(files(server)) == idle)
            before = ticks(server)
            time.sleep(0.2)
            assert ticks(server) - before < 10  # of 100 a second: it waits for requests and does not turn in a circle
    assert capfd.readouterr().out == ""


def files(process: Path) -> list[str]:
    return [os.readlink(file) for file in (process / "fd").iterdir()]


def ticks(process: Path) -> int:
    fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_what_is_being_loaded_is_not_loaded_twice(work):
    with processes.preloading("work"):
        loader = processes._loader
        with processes.preloading("work"):
            assert processes._loader is loader
        assert processes._loader is loader
        with processes.preloaded("work"), processes.preloading("work"), processes.preloaded("work") as why_not:
            assert why_not == ""
            assert processes._loader is None
            assert run(work, "say")[2].split()[1] == str(loader.child.pid)
        assert processes._server is None


def test_a_loader_that_does_not_end_is_ended():
    said = []

    def wait(seconds=None):
        said.append(("wait", seconds))
        if seconds:
            raise subprocess.TimeoutExpired("x", seconds)

    child = SimpleNamespace(wait=wait, terminate=lambda: said.append("terminate"), kill=lambda: said.append("kill"))
    for ready, first in ((True, []), (False, ["kill"])):
        loader = object.__new__(processes.Loader)
        loader.ready, loader.child, loader.err, loader.socket = ready, child, io.BytesIO(), io.BytesIO()
        said.clear()
        loader.end()
        assert said == [*first, ("wait", processes.GRACE_SECONDS), "terminate", ("wait", None)]
        assert loader.err.closed
        assert loader.socket.closed


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_a_signal_to_one_that_has_ended_is_no_error(error):
    def send(_):
        raise error

    processes.Forked.send_signal(SimpleNamespace(line=SimpleNamespace(send=send)), signal.SIGINT)


def test_a_process_whose_parent_is_gone_may_write_first_and_then_ends(monkeypatch):
    parents, events = iter([7, 7, 1]), []
    monkeypatch.setenv("ATTNZOO_PARENT", "7")
    monkeypatch.setattr(processes.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(processes.os, "kill", lambda pid, sig: events.append((pid, sig)))
    monkeypatch.setattr(processes.os, "_exit", lambda status: events.append(("exit", status)))
    monkeypatch.setattr(processes.time, "sleep", events.append)
    monkeypatch.setattr(
        processes.threading, "Thread", lambda target, daemon: SimpleNamespace(start=target, daemon=daemon)
    )
    processes.end_with_parent()
    assert events[2:] == [(os.getpid(), signal.SIGTERM), processes.GRACE_SECONDS, ("exit", 1)]
    assert max(events[:2]) <= 1  # looked at within a second
    monkeypatch.delenv("ATTNZOO_PARENT")
    processes.end_with_parent()
    assert len(events) == 5


def test_stacks_are_shown_of_all_threads(monkeypatch):
    asked = []
    monkeypatch.setattr(processes.faulthandler, "enable", lambda: asked.append("enable"))
    monkeypatch.setattr(processes.faulthandler, "register", lambda sig, all_threads: asked.append((sig, all_threads)))
    processes.show_stacks()
    assert asked == ["enable", (signal.SIGUSR1, True)]


def test_the_package_is_found_where_it_is_now(monkeypatch):
    home = str(Path(attnzoo.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    assert processes._environment()["PYTHONPATH"] == f"{home}{os.pathsep}/theirs"
    monkeypatch.delenv("PYTHONPATH")
    assert processes._environment()["PYTHONPATH"] == home
    monkeypatch.setattr(attnzoo, "__file__", "/x/site-packages/attnzoo/__init__.py")
    assert processes._environment() == dict(os.environ)


def test_the_end_of_a_log():
    log = io.BytesIO(b"first\nsec\xffond\n\n")
    assert processes.tail(log) == "first\nsec\ufffdond\n\n"
    assert [processes.tail(log, since=6), processes.tail(log, most=4), processes.tail(log, 4, 16)] == [
        "sec\ufffdond\n\n", "nd\n\n", "",
    ]  # fmt: skip
    assert processes.last_line(log) == "sec\ufffdond"
    assert processes.last_line(io.BytesIO()) == ""
    assert len(processes.tail(io.BytesIO(b"x" * (2**22 + 5)))) == 2**22


@pytest.mark.parametrize(
    ("cuda", "counted", "listed", "said"),
    [(False, 1, 1, ""), (True, 1, 1, "with CUDA every process loads for itself"), (False, 3, 1, "loading started 2 threads"),
     (False, 1, 4, "loading started 3 threads")],
)  # fmt: skip
def test_a_process_is_forked_off_one_that_is_whole_then(monkeypatch, cuda, counted, listed, said):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: cuda)))
    monkeypatch.setattr(forkserver.threading, "active_count", lambda: counted)
    monkeypatch.setattr(forkserver.os, "listdir", lambda place: ["thread"] * listed)
    assert forkserver.why_not_fork() == said


def wait_for(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_thread_that_watches_the_parent_takes_no_signals():
    """One that it took would not break off what the main thread waits for."""
    code = (
        "import os, pathlib, signal, time; os.environ['ATTNZOO_PARENT'] = str(os.getppid());"
        "from attnzoo.processes import end_with_parent; end_with_parent(); time.sleep(0.3);"
        "masks = {t.name: int((t / 'status').read_text().partition('SigBlk:')[2].split()[0], 16)"
        " for t in pathlib.Path('/proc/self/task').iterdir()};"
        "main = masks.pop(str(os.getpid())); (other,) = masks.values();"
        "print(*(bool(mask >> (s - 1) & 1) for mask in (main, other) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False"] * 3 + ["True"] * 3
