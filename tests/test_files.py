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


BOMB = "a: &a [x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_a_foreign_file_has_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 1000)
    deep, edge = tmp_path / "deep", tmp_path / "edge"
    for read in (files.read_json, files.read_yaml):
        deep.write_text("[" * 65 + "]" * 65)
        edge.write_text("[" * 64 + "]" * 64)
        assert read(edge) is not None
        with pytest.raises(RequestError, match="more than 64 levels"):
            read(deep)
        deep.write_text("[" * 499 + "]" * 499)
        with pytest.raises(RequestError, match="levels"):
            read(deep)
        deep.write_text(" " * 999 + "1")
        assert read(deep) == 1
        deep.write_text(" " * 1000 + "1")
        with pytest.raises(RequestError, match="more than 1000 bytes"):
            read(deep)
        deep.write_bytes(b"\xff\xfe\xff")
        with pytest.raises(RequestError):
            read(deep)
        with pytest.raises(RequestError):
            read(tmp_path)


def test_aliases_in_yaml_are_refused_before_they_are_unfolded(tmp_path):
    (tmp_path / "bomb").write_text(BOMB)
    with pytest.raises(RequestError, match="aliases"):
        files.read_yaml(tmp_path / "bomb")
    (tmp_path / "tag").write_text("a: !!python/object/apply:os.system [true]\n")
    with pytest.raises(RequestError, match="cannot be read"):
        files.read_yaml(tmp_path / "tag")
    (tmp_path / "date").write_text("a: 2020-13-45\n")
    with pytest.raises(RequestError, match="cannot be read"):
        files.read_yaml(tmp_path / "date")


def test_what_is_deeper_than_python_can_count_is_one_clear_error(tmp_path):
    (tmp_path / "deep").write_text("[" * 100_000)
    with pytest.raises(RequestError, match=r"levels|not JSON"):
        files.read_json(tmp_path / "deep")


def test_a_number_spelt_unlike_ours_stays_a_text(tmp_path):
    (tmp_path / "x").write_text("[83e1012, 0x10, 1_000, 1:30, 010, 1.50, 7, -2, 0.5, 1.0e-05, .inf, true, null]")
    kept = ["83e1012", "0x10", "1_000", "1:30", "010", "1.50", 7, -2, 0.5, 1e-05, float("inf"), True, None]
    assert files.read_yaml(tmp_path / "x") == kept
