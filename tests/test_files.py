import json
import math
import stat

import numpy as np
import pytest

from attnzoo import files
from attnzoo.errors import RequestError


def test_replaces_whole_files_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "deep" / "a.json"
    files.write_json_atomic(path, {"x": 1})
    files.write_json_atomic(path, {"x": math.nan, 3: (1, np.float32(2.5), np.int64(4))})
    assert json.loads(path.read_text()) == {"x": None, "3": [1, 2.5, 4]}
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]
    assert stat.S_IMODE(path.stat().st_mode) & stat.S_IRUSR


def test_failure_keeps_the_old_file_and_no_rubbish(tmp_path, monkeypatch):
    path = files.write_text_atomic(tmp_path / "a.txt", "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(RequestError, match="No space left"):
        files.write_text_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_a_file_is_one_clear_message(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RequestError, match="cannot write"):
        files.write_text_atomic(tmp_path / "run" / "record.json", "")
    with pytest.raises(RequestError, match="cannot read"):
        files.read_json(tmp_path / "none.json")


def test_whether_a_file_can_be_written_is_known_before(tmp_path):
    files.check_writable(tmp_path / "new" / "x.json")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "x.json", tmp_path):
        with pytest.raises(RequestError, match="cannot write"):
            files.check_writable(place)


def test_a_folder_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    folder = files.write_folder_atomic(tmp_path / "deep" / "out", {"a": b"1", "b": b"2"})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a": b"1", "b": b"2"}
    assert stat.S_IMODE(folder.stat().st_mode) & stat.S_IXUSR
    with pytest.raises(RequestError, match="choose a new folder"):
        files.write_folder_atomic(folder, {"a": b"3"})
    (tmp_path / "empty").mkdir()
    assert (files.write_folder_atomic(tmp_path / "empty", {"a": b"3"}) / "a").read_bytes() == b"3"

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(RequestError, match="No space left"):
        files.write_folder_atomic(tmp_path / "new", {"a": b"1"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "empty"]
