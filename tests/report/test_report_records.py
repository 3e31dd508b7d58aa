"""A comparison's folder gives a record for every planned cell."""

import json

import pytest

from attnzoo.errors import RequestError
from attnzoo.report.records import find_records


def test_every_planned_cell_has_a_record(folder, records):
    found = find_records(folder)
    assert [r["run"] for r in found.records[:3]] == ["exact-s0", "exact-s1", "exact-s2"]  # the plan's order
    assert len(found.records) == len(records) + 1
    lost = found.records[-1]
    assert (lost.attention, lost.seed, lost.status) == ("gqa", 3, "interrupted")
    assert lost.reasons


def test_a_single_run_folder_is_read(folder):
    [record] = find_records(folder / "sdpa-s1").records
    assert (record.attention, record.seed, record.run) == ("sdpa", 1, ".")


def test_an_unreadable_record_keeps_its_row(folder):
    (folder / "sdpa-s1" / "record.json").write_text('{"schema": 1, "sta')
    record = next(r for r in find_records(folder).records if r.run == "sdpa-s1")
    assert (record.status, record.attention, record.seed) == ("failed", "sdpa", 1)
    assert "not JSON" in record.reasons[0]


def test_an_unreadable_record_that_nothing_planned_is_named_after_its_folder(folder):
    (folder / "extra").mkdir()
    (folder / "extra" / "record.json").write_text("[]")
    [record] = [r for r in find_records(folder).records if r.run == "extra"]
    assert (record.attention, record.status, record.planned) == ("extra", "failed", False)
    assert record.reasons[1:] == ["it holds no JSON object"]


def test_a_plan_that_is_none_is_said(folder):
    (folder / "comparison.json").write_text("[]")
    with pytest.raises(RequestError, match="not the plan of a comparison"):
        find_records(folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "is not there"), ("file", "is a file, not a run folder"), ("empty", "no run record in")],
)
def test_nothing_to_report_is_one_clear_error(tmp_path, content, said):
    path = tmp_path / "here"
    if content == "file":
        path.write_text("x")
    elif content == "empty":
        path.mkdir()
    with pytest.raises(RequestError, match=said) as error:
        find_records(path)
    assert str(path) in error.value.message


def test_a_record_outside_the_plan_is_added(folder):
    (folder / "extra").mkdir()
    (folder / "extra" / "record.json").write_text(json.dumps({"schema": 1, "status": "ok", "attention": "mine"}))
    assert find_records(folder).records[-1].attention == "mine"
