"""A run is told from others by what its text says, not by where it lies; with the text gone its folder is still read."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import tiny

import attnzoo
from attnzoo.cli import main
from attnzoo.data.config import DataConfig
from attnzoo.errors import RequestError
from attnzoo.measure.record import config_hash
from attnzoo.model.export import export
from attnzoo.training import load_run, train
from attnzoo.training.config import load_config, to_dict
from attnzoo.training.kept import kept_sha256, kept_text
from attnzoo.training.saved import load_saved

WORDS = "the whale is a fish said the man to the sea and the sea said nothing for it was late in the year of the whale "


def text(seed: int, n: int = 2500) -> str:
    """No 128 bytes recur."""
    draw = torch.randint(len(WORDS.split()), (n,), generator=torch.Generator().manual_seed(seed))
    return " ".join(WORDS.split()[i] for i in draw.tolist()) + "\n"


@pytest.fixture
def run(tmp_path):
    """A small run on a file of one's own, trained."""
    pytest.importorskip("tokenizers")
    (tmp_path / "a.txt").write_text(text(0))
    cfg = replace(
        tiny(tmp_path / "run", task="text", max_steps=2),
        data=DataConfig("files", "bpe", options={"paths": [str(tmp_path / "a.txt")], "bpe_vocab": 280}),
    )
    return cfg, train(cfg)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_record_and_the_configuration_name_the_text_by_content(run, tmp_path):
    cfg, record = run
    assert (
        record.data.sha256 == kept_sha256(tmp_path / "run") == load_config(tmp_path / "run").data.sha256 == sha(text(0))
    )
    assert record.data.bytes == len(text(0))
    state = kept_text(tmp_path / "run")["tokenizer"]
    assert record.data.tokenizer == state["name"] == "bpe"
    assert record.data.tokenizer_sha256 == hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    assert cfg.data.sha256 == ""  # what was asked for stays as it was


@pytest.mark.parametrize("resume", [True, False])
def test_another_text_is_not_gone_on_with_and_nothing_of_the_run_is_lost(run, tmp_path, resume):
    cfg, _ = run
    (tmp_path / "a.txt").write_text(text(1))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(RequestError, match="another text") as caught:
        train(replace(cfg, trainer=replace(cfg.trainer, resume=resume)))
    assert sha(text(0)) in str(caught.value)
    assert sha(text(1)) in str(caught.value)
    assert "run_dir" in str(caught.value)
    assert {path: path.read_bytes() for path in before} == before


def test_starting_over_may_be_on_another_text(run, tmp_path):
    cfg, _ = run
    (tmp_path / "a.txt").write_text(text(1))
    assert train(replace(cfg, trainer=replace(cfg.trainer, restart=True))).data.sha256 == sha(text(1))
    assert kept_sha256(tmp_path / "run") == sha(text(1))
    assert kept_text(tmp_path / "run")["sha256"] == sha(text(1))


def test_a_folder_of_before_is_held_to_the_text_in_its_record(run, tmp_path):
    cfg, _ = run
    as_before(tmp_path / "run")
    (tmp_path / "a.txt").write_text(text(1))
    with pytest.raises(RequestError, match=sha(text(0))):
        train(cfg)


def test_a_text_that_has_moved_is_the_same(run, tmp_path):
    cfg, _ = run
    (tmp_path / "a.txt").rename(tmp_path / "b.txt")
    moved = replace(cfg, data=replace(cfg.data, options={**cfg.data.options, "paths": [str(tmp_path / "b.txt")]}))
    assert config_hash(to_dict(moved)) == config_hash(to_dict(cfg))
    assert train(replace(moved, trainer=replace(cfg.trainer, max_steps=3))).quality.tokens_seen == 3 * 2 * 16


def test_the_files_and_their_order_are_content(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(text(ord(name)))
    both = [[str(tmp_path / name) for name in names] for names in ("ab", "ba")]
    configs = [
        replace(tiny(tmp_path / "run", task="text", max_steps=1), data=DataConfig("files", options={"paths": each}))
        for each in both
    ]
    train(configs[0])
    with pytest.raises(RequestError, match="another text"):
        train(configs[1])


def test_another_tokenizer_of_the_same_text_is_another_run(run, tmp_path):
    cfg, _ = run
    file = tmp_path / "run" / "data.json"
    kept = json.loads(file.read_text())
    kept["tokenizer"]["model"] = kept["tokenizer"]["model"].replace('"dropout":null', '"dropout":0.5')
    file.write_text(json.dumps(kept))
    with pytest.raises(RequestError, match="tokenizer"):
        train(replace(cfg, trainer=replace(cfg.trainer, max_steps=3)))


def test_a_pinned_text_is_checked_before_anything_is_written(tmp_path):
    cfg = tiny(tmp_path / "run", task="text")
    with pytest.raises(RequestError, match="data.sha256 asks for " + "0" * 64):
        train(replace(cfg, data=replace(cfg.data, sha256="0" * 64)))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("change", ["gone", "another"])
def test_without_its_text_a_run_is_sampled_tested_shown_and_exported(run, tmp_path, capsys, change):
    folder = str(tmp_path / "run")
    whole = load_saved(folder)
    (tmp_path / "a.txt").unlink()
    if change == "another":
        (tmp_path / "a.txt").write_text(text(1))
    saved = load_saved(folder)
    assert saved.tokenizer.state() == whole.tokenizer.state()
    assert torch.equal(saved.row(12), whole.row(12))
    assert saved.row(12).shape == (1, 12)
    prompt = saved.tokenizer.decode(saved.row(12)[0].tolist())
    assert (text(0) + "\n")[-len(text(0)) // 10 :].find(prompt[2:]) >= 0  # of the validation split
    assert main(["sample", folder, "--tokens", "4"]) == 0
    assert main(["leak", folder, "--tokens", "8"]) == 0
    assert main(["show", folder]) == 0
    assert main(["export", folder, "--out", str(tmp_path / "out")]) == 0
    assert main(["report", folder]) == 0
    assert load_saved(tmp_path / "out").tokenizer.state() == whole.tokenizer.state()
    capsys.readouterr()
    with pytest.raises(RequestError):
        load_run(folder)  # its task is the text itself
    assert main(["check", "--model", folder, "--quick"]) == 0
    assert "the task is not checked" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["gone", "another"])
def test_of_a_folder_of_before_only_what_needs_the_text_is_refused(run, tmp_path, capsys, change):
    folder = str(tmp_path / "run")
    as_before(tmp_path / "run")
    whole = load_saved(folder)
    assert whole.tokenizer is not None
    assert whole.opening is not None
    (tmp_path / "a.txt").unlink()
    if change == "another":
        (tmp_path / "a.txt").write_text(text(1))
    saved = load_saved(folder)
    assert saved.tokenizer is None
    assert saved.model.vocab_size == whole.model.vocab_size
    assert main(["leak", folder, "--tokens", "8"]) == main(["show", folder]) == 0
    assert main(["export", folder, "--out", str(tmp_path / "out")]) == 0
    assert "no tokenizer" in capsys.readouterr().err
    assert main(["sample", folder]) == 2
    assert "needs its text" in capsys.readouterr().err


def test_bytes_need_no_text_even_in_a_folder_of_before(tmp_path):
    (tmp_path / "a.txt").write_text(text(0))
    cfg = replace(
        tiny(tmp_path / "run", task="text", max_steps=1),
        data=DataConfig("files", options={"paths": [str(tmp_path / "a.txt")]}),
    )
    train(cfg)
    as_before(tmp_path / "run")
    (tmp_path / "a.txt").unlink()
    saved = load_saved(tmp_path / "run")
    assert saved.tokenizer.decode(saved.row(20)[0].tolist()) == "CHAPTER 1. Loomings."


def test_a_synthetic_task_keeps_nothing(tmp_path):
    record = train(tiny(tmp_path / "run", max_steps=1))
    assert "data" not in record
    assert not (tmp_path / "run" / "data.json").exists()
    saved = load_saved(tmp_path / "run")
    assert (saved.tokenizer, saved.row(9).shape) == (None, (1, 9))
    assert "no text" in saved.no_text
    assert saved.load_task().name == "recall"


@pytest.mark.parametrize(
    "damage",
    [
        "", "[]", '{"tokenizer": {"name": "bytes"}}', '{"tokenizer": 3, "opening": [1]}',
        '{"tokenizer": {"name": "bytes"}, "opening": []}', '{"tokenizer": {"name": "bytes"}, "opening": ["a"]}',
        '{"tokenizer": {"name": "bytes"}, "opening": [-1]}', '{"tokenizer": {"name": "bpe", "model": 3}, "opening": [1]}',
    ],
)  # fmt: skip
def test_damage_is_one_clear_error(tmp_path, damage):
    train(tiny(tmp_path / "run", task="text", max_steps=1))
    (tmp_path / "run" / "data.json").write_text(damage)
    with pytest.raises(RequestError):
        load_saved(tmp_path / "run")


def test_load_reads_a_run_and_an_export(run, tmp_path):
    tokens = torch.arange(10)[None]
    shutil.rmtree(tmp_path / "run" / "wandb", ignore_errors=True)
    model = attnzoo.load(tmp_path / "run")
    assert isinstance(model, attnzoo.CausalLM)
    assert not model.training
    assert torch.equal(model(tokens), load_run(tmp_path / "run")[1](tokens))
    attnzoo.export(model, tmp_path / "out")
    assert torch.equal(attnzoo.load(str(tmp_path / "out"))(tokens), model(tokens))
    for nothing in (tmp_path / "nowhere", tmp_path / "a.txt", 3):
        with pytest.raises(RequestError):
            attnzoo.load(nothing)


def as_before(folder):
    """The folder as it was written before a text was told by its content."""
    (folder / "data.json").unlink()
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text("".join(line for line in config.splitlines(True) if "sha256" not in line))
    record = json.loads((folder / "record.json").read_text())
    record.pop("data")
    (folder / "record.json").write_text(json.dumps(record))


def test_weights_for_other_tokens_are_refused_though_they_fit(run, tmp_path, capfd):
    """Two texts whose BPEs have as many tokens: other characters for the same ids."""
    cfg, _ = run
    (tmp_path / "b.txt").write_text(text(0).translate(str.maketrans("aeiou", "eioua")))
    data = replace(cfg.data, options={**cfg.data.options, "paths": [str(tmp_path / "b.txt")]})
    export(load_saved(cfg.run_dir).model, tmp_path / "model", load_saved(cfg.run_dir).tokenizer)
    export(load_saved(cfg.run_dir).model, tmp_path / "bare")

    def start(source, data=data):
        trainer = replace(cfg.trainer, init_from=str(source))
        return train(replace(cfg, data=data, trainer=trainer, run_dir=str(tmp_path / f"from-{Path(source).name}")))

    for source in (cfg.run_dir, tmp_path / "model"):
        with pytest.raises(RequestError, match="its weights do not fit this model") as caught:
            start(source)
        assert re.search(
            r"its tokens are others: bpe with 280 tokens there, 280 here; \d+ ids stand for others, "
            "the first 2[5-7]\\d: there '.+', here '.+'",
            str(caught.value),
        )
        assert not (tmp_path / f"from-{Path(source).name}").exists()
    assert start(cfg.run_dir, cfg.data).status == "ok"
    shutil.rmtree(tmp_path / "from-run")
    capfd.readouterr()
    assert start(tmp_path / "bare").status == "ok"
    assert "was exported without a tokenizer: its ids are taken for those of bpe" in capfd.readouterr().err
    (tmp_path / "run/data.json").unlink()  # as in a folder of before
    with pytest.raises(RequestError, match="its tokens are others"):  # made again of its text
        start(cfg.run_dir)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(RequestError, match="its tokens are not known: it needs its text"):
        start(cfg.run_dir)


def test_tokens_that_the_model_does_not_have_are_named(run, tmp_path):
    cfg, _ = run
    file = tmp_path / "run/data.json"
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "tokenizer": {"name": "bytes"}, "opening": [1, 999]}))
    with pytest.raises(RequestError, match="is damaged: its model has 280 tokens") as wrong:
        load_saved(cfg.run_dir)
    assert wrong.value.reasons == ["the tokenizer has 256 tokens", "the opening of its text has token 999"]
    file.write_text(json.dumps(kept))
    saved = load_saved(cfg.run_dir)
    export(saved.model, tmp_path / "model", saved.tokenizer)
    config = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").write_text(json.dumps({**config, "tokenizer": {"name": "bytes"}}))
    with pytest.raises(RequestError, match="the tokenizer has 256 tokens"):
        load_saved(tmp_path / "model")
