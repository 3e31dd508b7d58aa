"""Streaming, with the package where it is installed and a stand-in module otherwise; nothing here uses the network."""

import hashlib
import importlib.util
import json
import socket
import sys
import types

import pytest

from attnzoo.corpora import hf as huggingface
from attnzoo.corpora.hf import take_text
from attnzoo.data.config import DataConfig
from attnzoo.data.sources import read_source, text_sha256
from attnzoo.errors import RequestError


@pytest.fixture
def stand_in(monkeypatch):
    """A `datasets` module whose `load_dataset` records its calls and gives ``rows``."""
    module = types.ModuleType("datasets")
    module.exceptions = types.SimpleNamespace(DatasetsError=type("DatasetsError", (Exception,), {}))
    module.rows, module.calls = [{"text": "one — é"}, {"text": ""}, {"text": "two"}], []

    def load_dataset(name, subset, *, split, streaming):
        module.calls.append((name, subset, split))
        assert streaming
        if isinstance(module.rows, Exception):
            raise module.rows
        return iter(module.rows)

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


@pytest.fixture
def online(monkeypatch):
    monkeypatch.setattr(huggingface, "_require_network", lambda dataset: None)


def hf(dataset="owner/name", **settings) -> DataConfig:
    own = {key: settings.pop(key) for key in ("subset", "split", "text_field", "max_bytes") if key in settings}
    return DataConfig(name="hf", **settings, options={"dataset": str(dataset), **own})


def read_in(cfg: DataConfig, cache):
    """With this folder as the user's cache."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(cache))
        return read_source(cfg)


def test_what_was_streamed_is_kept_and_read_again_without_a_network(stand_in, online, monkeypatch, tmp_path):
    text, origin = read_in(hf(subset="small"), tmp_path)
    assert text.decode() == "one — é\ntwo\n"
    assert origin["dataset"] == "owner/name"
    assert stand_in.calls == [("owner/name", "small", "train")]
    monkeypatch.setattr(huggingface, "_require_network", lambda dataset: pytest.fail("asked for the network"))
    assert read_in(hf(subset="small"), tmp_path) == (text, origin)
    assert len(stand_in.calls) == 1


def test_another_request_does_not_get_the_kept_text(stand_in, online, tmp_path):
    read_in(hf(), tmp_path)
    read_in(hf(max_bytes=4), tmp_path)
    assert len(stand_in.calls) == 2


def test_a_data_set_that_has_changed_is_another_text(stand_in, online, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = text_sha256(hf())
    assert read_in(hf(sha256=before), tmp_path)[1]["sha256"] == before
    stand_in.rows = [{"text": "three"}]
    after = hashlib.sha256(b"three\n").hexdigest()
    assert read_in(hf(sha256=before), tmp_path)[1]["sha256"] == before  # what was kept
    with pytest.raises(RequestError, match=f"owner/name is another: its SHA-256 is {after}.* asks for {before}"):
        read_in(hf(sha256=before), tmp_path / "another cache")


def test_streaming_stops_at_max_bytes_between_two_characters():
    asked = []

    def rows():
        for i in range(1000):
            asked.append(i)
            yield {"text": "—" * 10}  # 30 bytes

    text = take_text(rows(), "text", 100)
    assert text.decode().replace("\n", "") == "—" * 32  # 96 bytes and 3 line ends; the next would end at 102
    assert asked == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"txt": "a", "url": "b"}], "unknown data.text_field 'text'; did you mean 'txt'? valid: txt, url"),
        ([{"text": 7}], "holds int, not text"),
        ([], "holds no text"),
        ([{"text": " "}], "holds no text"),
        (ValueError("Bad split: train. Available splits: ['test']\nmore"), "Bad split: train. Available splits"),
        (ConnectionError("reset"), "owner/name cannot be read: reset"),
    ],
)
def test_an_unusable_data_set_is_one_clear_line(stand_in, online, tmp_path, rows, expected):
    stand_in.rows = rows
    with pytest.raises(RequestError) as caught:
        read_in(hf(), tmp_path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "owner/name" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_no_network_is_said_before_the_library_is_asked(stand_in, monkeypatch, tmp_path):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as free:  # bound but not listening: a connection is refused
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(RequestError, match=r"no network.*owner/name.*data\.name=moby_dick"):
            read_in(hf(), tmp_path)
    assert stand_in.calls == []


def test_a_network_that_never_answers_is_no_network(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(RequestError, match="no network"):
            huggingface._require_network("owner/name", seconds=0.2)


def test_offline_mode_is_obeyed(stand_in, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RequestError, match="HF_HUB_OFFLINE"):
        read_in(hf(), tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs the extra hf")
def test_a_local_folder_with_the_library_itself(tmp_path):
    rows = "".join(json.dumps({"text": text}) + "\n" for text in ("one — é", "two"))
    (tmp_path / "train.jsonl").write_text(rows, encoding="utf-8")
    assert read_source(hf(tmp_path))[0].decode() == "one — é\ntwo\n"
    for wrong in (hf(tmp_path, split="test"), hf(tmp_path, subset="none"), hf(tmp_path, text_field="txt")):
        with pytest.raises(RequestError):
            read_source(wrong)
