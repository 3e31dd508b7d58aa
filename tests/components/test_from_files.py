"""A component of a file: trained, compared, swept and loaded like a built-in one, and never run because a file says so."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

import attnzoo
from attnzoo import components
from attnzoo.config import compose
from attnzoo.errors import RequestError
from attnzoo.from_files import code_of, load_code, register_file
from attnzoo.measure.record import config_hash
from attnzoo.training.config import from_dict, to_dict

MINE = '''
from dataclasses import dataclass

from attnzoo import IGNORE, Attention, Capabilities, Options, Task


class Plain(Attention):
    """Softmax over the mask, by its definition."""

    source = "a file"
    capabilities = Capabilities()

    def weights(self, q, k, mask, bias=None, x=None):
        return super().weights(q, k, mask, bias, x)


@dataclass(frozen=True)
class EchoOptions(Options):
    """delay: tokens between a symbol and its echo."""

    delay: int = 3


class Echo(Task):
    """Say what was heard some tokens ago."""

    source = "a file"
    Options = EchoOptions
    vocab_size = 8
    chance = 1 / 8

    def rows(self, random, n):
        tokens = random.integers(0, 8, (n, self.n_tokens))
        targets = tokens.copy()
        targets[:, self.options.delay :] = tokens[:, : -self.options.delay]
        targets[:, : self.options.delay] = IGNORE
        return tokens, targets


not_a_component = 3
'''


@pytest.fixture
def mine(tmp_path: Path):
    """The file."""
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    return file


TINY = ["experiment=tiny", "measure=none"]


def test_a_task_of_a_file_is_chosen_by_its_class_name_with_options_of_its_own(mine: Path, tmp_path: Path) -> None:
    cfg = compose("train", [*TINY, f"task={mine}:Echo", "task.delay=2", f"run_dir={tmp_path / 'run'}"])
    assert (cfg.task.name, cfg.task.options) == ("Echo", {"delay": 2})
    sha = hashlib.sha256(mine.read_bytes()).hexdigest()
    assert cfg.code == {"task:Echo": {"file": str(mine), "class": "Echo", "sha256": sha}}
    assert from_dict(to_dict(cfg)) == cfg
    record = attnzoo.train(cfg)
    assert record.status == "ok"
    assert record.quality.task_chance == {"Echo": 1 / 8}
    assert attnzoo.build_model(cfg).vocab_size == 8


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ("task={}:Ech", "unknown task in .*'Ech'; did you mean 'Echo'"),
        ("task={}:Plain", "does not extend attnzoo.Task"),
        ("task={}:not_a_component", "does not extend attnzoo.Task"),
        ("attention={}:Echo", "does not extend attnzoo.Attention"),
        ("task=gone.py:Echo", "no such file"),
    ],
)
def test_a_wrong_file_or_class_is_one_line(mine: Path, choice: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        compose("train", [*TINY, choice.format(mine)])


def test_an_option_that_the_class_lacks_is_refused_and_one_of_a_preset_is_left_out(mine: Path) -> None:
    with pytest.raises(RequestError, match=r"unknown key 'task.delai'; did you mean 'task.delay'"):
        compose("train", [*TINY, f"task={mine}:Echo", "task.delai=2"])
    assert compose("train", [*TINY, f"task={mine}:Echo"]).task.options == {
        "delay": 3
    }  # experiment=tiny sets validation_tokens


def test_a_file_that_fails_says_its_error(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("import nowhere_to_be_found\n")
    with pytest.raises(RequestError, match=r"broken.py cannot be imported: ModuleNotFoundError.*nowhere_to_be_found"):
        compose("train", [f"task={file}:Echo"])


def test_an_edited_file_replaces_its_class_and_is_another_run(mine: Path) -> None:
    before = compose("train", [*TINY, f"task={mine}:Echo"])
    mine.write_text(MINE.replace("delay: int = 3", "delay: int = 5"))
    after = compose("train", [*TINY, f"task={mine}:Echo"])
    assert after.task.options == {"delay": 5}
    assert config_hash(to_dict(before)) != config_hash(to_dict(after))
    moved = mine.with_name("moved.py")
    moved.write_text(mine.read_text())
    code = {"task:Echo": {**after.code["task:Echo"], "file": str(moved)}}
    assert config_hash({**to_dict(after), "code": code}) == config_hash(to_dict(after))


def test_a_configuration_alone_runs_no_code(mine: Path, tmp_path: Path) -> None:
    cfg = compose("train", [*TINY, f"attention={mine}:Plain", f"task={mine}:Echo", f"run_dir={tmp_path / 'run'}"])
    attnzoo.train(cfg)
    for kind, name in (("attention", "Plain"), ("task", "Echo")):
        del components._classes[kind][name], components._origin[kind, name]
    with pytest.raises(RequestError, match="--allow-code") as refused:
        attnzoo.load(tmp_path / "run")
    assert refused.value.reasons == [f"attention:Plain: {mine}:Plain"]  # the task's code is not needed
    with pytest.raises(RequestError, match="--allow-code"):
        attnzoo.train(cfg)
    assert attnzoo.load(tmp_path / "run", allow_code=True).recipe.attention.name == "Plain"
    del components._classes["attention"]["Plain"], components._origin["attention", "Plain"]
    mine.write_text(MINE + "# edited\n")
    with pytest.raises(RequestError, match="is another than the run's"):
        load_code(cfg.code, allowed=True, kinds=("attention",))


def test_what_is_defined_in_no_file_cannot_reach_other_processes(mine: Path) -> None:
    prompt = sys.modules["a_prompt"] = types.ModuleType("a_prompt")  # as a notebook's __main__: it has no file
    exec(MINE, vars(prompt))
    attnzoo.register("at_a_prompt")(prompt.Echo)
    assert code_of([("task", "at_a_prompt")]) == ({}, ["task 'at_a_prompt' (a_prompt.Echo)"])
    with pytest.raises(RequestError, match="was defined in no file: put it into one"):
        compose("compare", [*TINY, "task=at_a_prompt", "backends=[sdpa]"])
    assert compose("train", [*TINY, "task=at_a_prompt"]).code == {}


def test_a_file_that_registers_its_class_keeps_that_name(mine: Path) -> None:
    mine.write_text(MINE.replace("class Echo(Task)", "@__import__('attnzoo').register('echo')\nclass Echo(Task)"))
    assert register_file("task", str(mine), "Echo") == "echo"


def test_a_comparison_and_a_sweep_reach_the_file_in_their_processes(mine: Path, tmp_path: Path) -> None:
    run = [sys.executable, "-m", "attnzoo"]
    one = ["experiment=tiny", "measure=none", "probe=none", f"task={mine}:Echo"]
    where = tmp_path / "compared"
    subprocess.run(
        [*run, "compare", *one, f"backends=[sdpa,{mine}:Plain]", f"run_dir={where}"], check=True, capture_output=True
    )
    records = {path.parent.name: json.loads(path.read_text()) for path in where.glob("*/record.json")}
    assert {name: record["status"] for name, record in records.items()} == {"sdpa-seed0": "ok", "Plain-seed0": "ok"}
    swept = tmp_path / "swept"
    subprocess.run(
        [*run, "sweep", *one[:3], "attention=sdpa", f"task={mine}:Echo,recall", f"run_dir={swept}"],
        check=True, capture_output=True,
    )  # fmt: skip
    statuses = [json.loads(path.read_text())["status"] for path in swept.glob("*/record.json")]
    assert statuses == ["ok", "ok"]
