"""Corpora and tokenizers are components: those of a file are trained on, kept, refused and known by content."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import attnzoo
from attnzoo import components
from attnzoo.config import compose, default_folder
from attnzoo.errors import RequestError
from attnzoo.from_files import register_file
from attnzoo.measure.record import config_hash
from attnzoo.tokenizers import tokenizer_from_state
from attnzoo.training.again import flat, in_the_way
from attnzoo.training.config import from_dict, to_dict
from attnzoo.training.saved import load_saved

TEXTS = Path(__file__).with_name("texts.py")
TINY = ["experiment=tiny", "measure=none", "logger=disabled", "trainer.precision=fp32", "data.allow_shared_text=true"]
MINE = [f"data={TEXTS}:Squares", f"data.tokenizer={TEXTS}:Shifted", "data.n_lines=3000"]


def test_those_of_a_file_are_trained_on_and_stand_in_the_record(tmp_path: Path) -> None:
    cfg = compose("train", [*TINY, *MINE, f"run_dir={tmp_path / 'run'}"])
    assert (cfg.data.name, cfg.data.tokenizer) == ("Squares", "Shifted")
    assert cfg.data.options == {"n_lines": 3000, "label": "é"}
    assert {*cfg.code} == {"corpus:Squares", "tokenizer:Shifted"}
    assert from_dict(to_dict(cfg)) == cfg
    record = attnzoo.train(cfg)
    assert record.status == "ok"
    assert record.data.tokenizer == "Shifted"
    kept = json.loads((tmp_path / "run/data.json").read_text())
    assert (kept["source"], kept["n_lines"], kept["tokenizer"]) == ("Squares", 3000, {"name": "Shifted"})
    assert kept["bytes"] == len(components.make("corpus", "Squares", cfg.data.options, "data.").read())


def test_a_tokenizer_of_a_file_is_no_code_that_runs_by_itself(tmp_path: Path) -> None:
    attnzoo.train(compose("train", [*TINY, *MINE, f"run_dir={tmp_path / 'run'}"]))
    for kind, name in (("corpus", "Squares"), ("tokenizer", "Shifted")):
        del components._classes[kind][name]
    saved = load_saved(tmp_path / "run")  # its model needs no code
    assert saved.tokenizer is None
    assert "--allow-code" in saved.no_text
    saved = load_saved(tmp_path / "run", allow_code=True)
    assert saved.tokenizer is not None
    assert saved.tokenizer.decode(saved.tokenizer.encode("né")) == "né"
    with pytest.raises(RequestError, match="unknown tokenizer 'Shifty'"):
        tokenizer_from_state({"name": "Shifty"})


def test_a_text_option_stays_as_it_was_written(tmp_path: Path) -> None:
    assert compose("train", [*TINY, *MINE, "data.label=0x10"]).data.options["label"] == "0x10"
    (tmp_path / "1e5").write_text("a text\n" * 200)
    cfg = compose("train", [*TINY, "data=files", f"data.paths=[{tmp_path}/1e5]"])
    assert cfg.data.options["paths"] == [f"{tmp_path}/1e5"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.dataset=a/b"], "it is an option of hf"),
        (["data.bpe_vocab=300"], "it is an option of bpe"),
        (["data.tokenizer=byte"], "data.tokenizer=byte: did you mean bytes? valid: bpe, bytes"),
        (["data=moby"], "unknown data 'moby'; did you mean 'moby_dick'?"),
        (["data.tokenizer=bpe", "data.bpe_vocab=256"], "data.bpe_vocab=256: must be at least 257"),
        (["data=files"], "data.name=files needs data.paths=[...]"),
        ([f"data={TEXTS}:Shifted"], "does not extend attnzoo.Corpus"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(words, said) -> None:
    with pytest.raises(RequestError) as caught:
        compose("train", [*TINY, *words])
    assert said in str(caught.value)


def test_a_corpus_that_is_no_text_is_refused(tmp_path: Path) -> None:
    register_file("corpus", str(TEXTS), "Latin")
    with pytest.raises(RequestError, match="the corpus Latin gives no UTF-8: byte 0xe9 at offset 0"):
        attnzoo.train(compose("train", [*TINY, "data=Latin", f"run_dir={tmp_path / 'run'}"]))


BEFORE = {
    "name": "moby_dick", "paths": [], "dataset": "", "subset": None, "split": "train", "text_field": "text",
    "max_bytes": 50_000_000, "tokenizer": "bytes", "bpe_vocab": 2048, "validation_fraction": 0.1, "sha256": "",
    "allow_shared_text": False,
}  # fmt: skip


def test_settings_of_before_are_the_same_run() -> None:
    """Earlier versions wrote every key of ``data`` and ``trainer``, and hashed them."""
    now = to_dict(compose("train", []))
    before = {**now, "data": BEFORE}
    assert from_dict(before) == from_dict(now)
    assert config_hash(before) == config_hash(now)
    assert in_the_way(flat(before), flat(now)) == []
    assert in_the_way(flat({**before, "data": {**BEFORE, "validation_fraction": 0.2}}), flat(now)) != []


def test_an_edited_file_is_another_folder_and_a_moved_one_is_not(tmp_path: Path) -> None:
    def folder(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return default_folder(compose("train", [*TINY, "data=files", f"data.paths=[{tmp_path / name}]", "run_dir=x"]))

    assert folder("a.txt", "one\n" * 99) == folder("b.txt", "one\n" * 99) != folder("a.txt", "two\n" * 99)
