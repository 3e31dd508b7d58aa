"""Cells are told apart by what their text says: none trained on one is ranked with, or replaced by, one of another."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

import attnzoo
from attnzoo.cli import main
from attnzoo.comparison.plan import TEXT, plan, write_plan
from attnzoo.comparison.sweep import plan_sweep
from attnzoo.comparison.texts import with_texts
from attnzoo.errors import RequestError
from attnzoo.training.config import to_yaml

TINY = ["experiment=tiny", "probe=none", "measure=none", "logger=disabled", "data=files", "data.allow_shared_text=true"]


def words(name: str) -> str:
    return f"{name}: the whale and the sea\n" * 60


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def asked(tmp_path):
    """A function that makes a comparison on a file."""
    (tmp_path / "a.txt").write_text(words("a"))

    def asked(*more: str, path="a.txt"):
        return attnzoo.compose(
            "compare", [*TINY, f"data.paths=[{tmp_path / path}]", f"run_dir={tmp_path / 'out'}", *more]
        )

    return asked


def begun(cfg):
    """The folder as a comparison leaves it whose cells have been started."""
    planned = with_texts(plan(cfg))
    write_plan(planned)
    for cell in planned.cells:
        cell.folder.mkdir(exist_ok=True)
        (cell.folder / "config.yaml").write_text(to_yaml(cell.cfg))
    return planned


def test_each_cell_and_the_plan_name_the_text(asked):
    planned = begun(asked("backends=[sdpa,mqa]"))
    assert {cell.cfg.data.sha256 for cell in planned.cells} == {planned.common[TEXT]} == {sha(words("a"))}
    assert with_texts(plan(asked("backends=[sdpa,mqa]"))) == planned


@pytest.mark.parametrize("backends", ["[sdpa]", "[mqa]", "[sdpa,mqa]"])
def test_cells_on_another_text_are_refused_with_both_hashes(asked, tmp_path, backends):
    begun(asked("backends=[sdpa]"))
    (tmp_path / "a.txt").write_text(words("b"))
    with pytest.raises(RequestError, match="another text") as caught:
        with_texts(plan(asked(f"backends={backends}")))
    assert sha(words("a")) in str(caught.value)
    assert sha(words("b")) in str(caught.value)
    assert "run_dir" in str(caught.value)


def test_starting_over_may_be_on_another_text(asked, tmp_path):
    begun(asked("backends=[sdpa]"))
    (tmp_path / "a.txt").write_text(words("b"))
    over = with_texts(plan(asked("backends=[sdpa]", "trainer.restart=true")))
    assert {cell.cfg.data.sha256 for cell in over.cells} == {over.common[TEXT]} == {sha(words("b"))}


def test_a_cell_of_before_is_held_to_the_text_of_its_record(asked, tmp_path):
    (tmp_path / "out" / "sdpa-seed0").mkdir(parents=True)
    record = {"schema": 1, "status": "ok", "quality": {"data": {"sha256": sha(words("b"))}}}
    (tmp_path / "out" / "sdpa-seed0" / "record.json").write_text(json.dumps(record))
    with pytest.raises(RequestError, match=r"sdpa-seed0, .*a\.txt: there SHA-256 " + sha(words("b"))):
        with_texts(plan(asked("backends=[sdpa,mqa]")))


def test_a_text_that_has_moved_is_the_same_comparison(asked, tmp_path):
    before = begun(asked("backends=[sdpa]"))
    (tmp_path / "a.txt").rename(tmp_path / "b.txt")
    after = with_texts(plan(asked("backends=[sdpa,mqa]", path="b.txt")))
    assert after.common == before.common
    assert after.cells[0].hash == before.cells[0].hash


def test_without_a_text_nothing_is_asked_of_it(asked):
    planned = with_texts(plan(asked("backends=[sdpa]", "task=recall")))
    assert TEXT not in planned.common
    assert planned.cells[0].cfg.data.sha256 == ""


def test_a_sweep_may_have_several_texts_and_each_is_held_to_its_own(asked, tmp_path):
    (tmp_path / "b.txt").write_text(words("b"))

    def swept():
        paths = f"data.paths=[{tmp_path / 'a.txt'}],[{tmp_path / 'b.txt'}]"
        return with_texts(plan_sweep([*TINY, paths, f"run_dir={tmp_path / 'out'}"]))

    planned = swept()
    assert [cell.cfg.data.sha256 for cell in planned.cells] == [sha(words("a")), sha(words("b"))]
    assert TEXT not in planned.common
    for cell in planned.cells:
        cell.folder.mkdir(parents=True)
        (cell.folder / "config.yaml").write_text(to_yaml(cell.cfg))
    assert swept() == planned
    (tmp_path / "b.txt").write_text(words("c"))
    with pytest.raises(RequestError) as caught:
        swept()
    assert sha(words("b")) in str(caught.value)
    assert sha(words("a")) not in str(caught.value)


def test_the_command_refuses_and_leaves_what_is_there(asked, tmp_path, capsys):
    words_ = [*TINY, f"data.paths=[{tmp_path / 'a.txt'}]", f"run_dir={tmp_path / 'out'}", "trainer.precision=fp32"]
    assert main(["compare", *words_, "backends=[sdpa]"]) == 0
    record = json.loads((tmp_path / "out/sdpa-seed0/record.json").read_text())
    assert record["data"]["sha256"] == sha(words("a"))
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    (tmp_path / "a.txt").write_text(words("b"))
    capsys.readouterr()
    assert main(["compare", *words_, "backends=[mqa]"]) == 2
    said = capsys.readouterr().err
    assert sha(words("a")) in said
    assert sha(words("b")) in said
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("kind", ["train", "compare"])
def test_the_folder_of_a_default_run_follows_the_content(tmp_path, kind):
    (tmp_path / "a.txt").write_text(words("a"))
    (tmp_path / "b.txt").write_text(words("b"))
    (tmp_path / "copy.txt").write_text(words("a"))
    a, b, copy = (
        attnzoo.compose(kind, [*TINY, f"data.paths=[{tmp_path / name}.txt]"]).run_dir for name in ("a", "b", "copy")
    )
    assert a == copy != b
    pinned = attnzoo.compose(kind, [*TINY, f"data.paths=[{tmp_path}/a.txt]", f"data.sha256={sha(words('a'))}"])
    assert pinned.run_dir == a


def test_a_cells_process_refuses_a_text_that_changed_after_the_plan(asked, tmp_path):
    cell = begun(asked("backends=[sdpa]")).cells[0]
    (tmp_path / "a.txt").write_text(words("b"))
    with pytest.raises(RequestError, match=r"data\.sha256 asks for"):
        attnzoo.train(replace(cell.cfg))
