"""Where text comes from: the embedded book, own files, and every wrong request in one message."""

import gzip
import hashlib
import json
import subprocess
import sys

import pytest

from attnzoo import components
from attnzoo.corpora import moby_dick
from attnzoo.corpora.base import cut_at_character
from attnzoo.data.config import DataConfig
from attnzoo.data.sources import data_problems, read_source, text_name, text_sha256
from attnzoo.errors import RequestError
from attnzoo.settings import read

MOBY_DICK = "fe282a57094ed62e7144fb7c804a9748fc1c909bf3b49d06e7276015f9f67240"


def files(*paths, **settings) -> DataConfig:
    return data(name="files", paths=[str(path) for path in paths], **settings)


def data(**settings) -> DataConfig:
    """The keys of ``data`` as they stand in a file."""
    arguments, faults = read(DataConfig, settings)
    assert not faults
    return DataConfig(**arguments)


def test_moby_dick_is_the_text_its_provenance_names():
    text, origin = read_source(DataConfig())
    assert hashlib.sha256(text).hexdigest() == origin["sha256"] == MOBY_DICK
    assert len(text) == origin["bytes"] == 1_204_997
    assert text.decode().startswith("CHAPTER 1. Loomings.\n\nCall me Ishmael.")
    assert text.count(b"Call me Ishmael.") == 1  # the source package holds the text twice
    assert origin["license"]
    assert origin["version"] == "0.2.3"


@pytest.mark.parametrize("damage", ["other text", "not gzip"])
def test_a_damaged_embedded_text_is_refused(tmp_path, monkeypatch, damage):
    (tmp_path / "texts").mkdir()
    content = gzip.compress(b"Call me Ahab.") if damage == "other text" else b"Call me Ahab."
    (tmp_path / "texts/moby_dick.txt.gz").write_bytes(content)
    (tmp_path / "texts/moby_dick.json").write_text(json.dumps({"sha256": MOBY_DICK}))
    monkeypatch.setattr(moby_dick.resources, "files", lambda package: tmp_path)
    with pytest.raises(RequestError, match="damaged"):
        read_source(DataConfig())


def test_own_files_are_joined_line_by_line(tmp_path):
    (tmp_path / "a.txt").write_text("one — é", encoding="utf-8")
    (tmp_path / "b.txt").write_text("two\n")
    text, origin = read_source(files(tmp_path / "a.txt", tmp_path / "b.txt"))
    assert text.decode() == "one — é\ntwo\n"
    assert origin["sha256"] == hashlib.sha256(text).hexdigest()


def test_every_wrong_file_and_setting_is_named_at_once(tmp_path):
    (tmp_path / "book.txt").write_text("a book")
    (tmp_path / "copy.txt").write_text("a book")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text(" \n\n")
    (tmp_path / "binary.txt").write_bytes(b"ab\0cd")
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "folder").mkdir()
    names = ["bok.txt", "folder", "empty.txt", "blank.txt", "binary.txt", "latin.txt", "book.txt", "copy.txt"]
    cfg = files(*(tmp_path / name for name in names), "/dev/null", tokenizer="byte", validation_fraction=1.0)
    with pytest.raises(RequestError) as caught:
        read_source(cfg)
    reasons = "\n".join(caught.value.reasons)
    for expected in (
        f"bok.txt: no such file; did you mean {tmp_path / 'book.txt'}?",
        "folder: is a folder",
        "empty.txt: empty",
        "blank.txt: empty",
        "binary.txt: binary: a zero byte at offset 2",
        "latin.txt: not UTF-8 text: byte 0xe9 at offset 3",
        f"copy.txt: the same text as {tmp_path / 'book.txt'}",
        "/dev/null: is not a regular file",
        "data.tokenizer=byte: did you mean bytes?",
        "data.validation_fraction=1.0",
    ):
        assert expected in reasons
    assert len(caught.value.reasons) == 10
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"name": "moby_dik"}, "unknown corpus 'moby_dik'; did you mean 'moby_dick'?"),
        ({"name": "files"}, "data.name=files needs data.paths=[...]"),
        ({"paths": ["a.txt"]}, "unknown key 'data.paths'"),
        ({"tokenizer": "bpe", "bpe_vocab": 256}, "data.bpe_vocab=256"),
        ({"validation_fraction": 0.0}, "data.validation_fraction=0.0"),
        ({"validation_fraction": float("nan")}, "data.validation_fraction=nan"),
        ({"name": "hf"}, "data.name=hf needs data.dataset"),
        ({"name": "hf", "dataset": "a/b", "max_bytes": 0}, "data.max_bytes=0"),
    ],
)
def test_a_wrong_setting_is_named(settings, expected):
    assert any(expected in problem for problem in data_problems(data(**settings)))


def test_missing_extras_are_named(monkeypatch):
    monkeypatch.setattr(components, "installed", lambda package: False)
    problems = data_problems(data(name="hf", dataset="a/b", tokenizer="bpe"))
    assert any("attnzoo[hf]" in problem for problem in problems)
    assert any("attnzoo[bpe]" in problem for problem in problems)


def test_a_cut_leaves_whole_characters():
    text = "a—b".encode()  # the dash is bytes 1 to 3
    assert [cut_at_character(text, at) for at in range(len(text) + 1)] == [0, 1, 1, 1, 4, 5]


def test_reading_text_imports_no_torch():
    code = (
        "import sys, attnzoo.data, attnzoo.tasks\n"
        "from attnzoo.data.config import DataConfig\n"
        "from attnzoo.data.sources import read_source\n"
        "read_source(DataConfig())\n"
        "assert not {'torch', 'datasets', 'tokenizers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_text_is_told_by_what_is_read(tmp_path):
    for name, content in (("a.txt", "one — é"), ("b.txt", "two\n"), ("ab.txt", "one — é\ntwo\n")):
        (tmp_path / name).write_text(content, encoding="utf-8")
    a, b, both = (tmp_path / name for name in ("a.txt", "b.txt", "ab.txt"))
    expected = hashlib.sha256("one — é\ntwo\n".encode()).hexdigest()
    assert text_sha256(files(a, b)) == text_sha256(files(both)) == expected
    assert text_sha256(files(b, a)) != expected
    assert text_sha256(files(a, b, sha256="0" * 64)) == expected  # what is there, not what was asked for
    assert text_sha256(DataConfig()) == MOBY_DICK
    assert [text_name(cfg) for cfg in (files(a, b), DataConfig(), data(name="hf", dataset="o/n"))] == [
        f"{a}, {b}", "moby_dick", "o/n",
    ]  # fmt: skip


def test_a_pinned_text_is_that_or_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    right = hashlib.sha256(b"a\n").hexdigest()
    assert read_source(files(tmp_path / "a.txt", sha256=right))[0] == b"a\n"
    with pytest.raises(RequestError) as caught:
        read_source(files(tmp_path / "a.txt", sha256="0" * 64))
    assert right in str(caught.value)
    assert "0" * 64 in str(caught.value)
    for wrong in ("A" * 64, "0" * 63, "0" * 65, "x"):
        assert any("data.sha256" in problem for problem in data_problems(DataConfig(sha256=wrong)))
