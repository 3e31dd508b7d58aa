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
