from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from attnzoo.errors import RequestError
from attnzoo.lock import holder, locked

HOLD = """
import sys, pathlib, time
from attnzoo.lock import locked
with locked(pathlib.Path(sys.argv[1])):
    print('held', flush=True)
    time.sleep(60)
"""


def test_a_second_holder_is_told_who_the_first_is(tmp_path):
    folder = tmp_path / "run"
    with locked(folder):
        assert holder(folder) == f"process {os.getpid()}"
        with (
            pytest.raises(RequestError, match=rf"run_dir=.*run is in use by process {os.getpid()}"),
            locked(folder, patience=0),
        ):
            pass
    assert holder(folder) is None
    with locked(folder, patience=0):
        pass


def test_a_lock_ends_with_its_holder_however_that_ends(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "held\n"
    with pytest.raises(RequestError, match=f"process {other.pid}"), locked(tmp_path, patience=0):
        pass
    other.kill()
    other.wait()
    with locked(tmp_path, patience=0):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"


def test_it_waits_for_a_holder_that_is_about_to_end(tmp_path):
    code = HOLD.replace("60", "0.3")
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "held\n"
    with locked(tmp_path, patience=30):
        assert other.wait(30) == 0


def test_a_folder_made_for_nothing_is_removed(tmp_path):
    with locked(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()
    with locked(tmp_path / "used"):
        (tmp_path / "used" / "record.json").write_text("{}")
    assert sorted(p.name for p in (tmp_path / "used").iterdir()) == [".lock", "record.json"]
    (tmp_path / "mine").mkdir()
    with locked(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").is_dir()


def test_a_lock_file_that_was_removed_holds_nobody(tmp_path):
    """Whoever waits on a file that its holder removes takes the new one."""
    code = (
        "import sys, pathlib\nfrom attnzoo.lock import locked\n"
        "with locked(pathlib.Path(sys.argv[1]), patience=30): print('got', flush=True)"
    )
    with locked(tmp_path / "run"):
        other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
        time.sleep(0.3)
    assert other.communicate(timeout=30)[0] == "got\n"
