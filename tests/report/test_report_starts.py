"""Timings of different starts, merged folders, and records that a plan no longer has."""

import csv
import json
import shutil

import pytest

from attnzoo.report import write_csv, write_report
from attnzoo.report.records import find_records, timing_set
from attnzoo.report.rows import summarise

APART = "the rows differ in the start they were timed at"


def rewrite(folder, pattern, edit):
    for path in folder.glob(f"{pattern}/record.json"):
        record = json.loads(path.read_text())
        edit(record)
        path.write_text(json.dumps(record))


def retimed(record):
    """As another start would have left it: twice as slow, since the machine was busy."""
    record["cost"]["timing_id"] = "rounds-2"
    for key in ("train_step_ms", "prefill_ms", "decode_ms_per_token"):
        record["cost"][key] |= {part: 2 * record["cost"][key][part] for part in ("median", "low", "high")}


def test_timings_of_another_start_are_shown_and_not_ranked(folder):
    rewrite(folder, "exact-*", retimed)
    summary = summarise(find_records(folder).records)
    assert summary.rankings["train_step_ms"].reason == APART
    assert summary.rankings["decode_ms_per_token"].reason == APART
    assert "val_bits_per_byte" in summary.best
    assert next(row for row in summary.rows if row.label == "exact").values["train_step_ms"].value > 290


def test_seeds_timed_at_different_starts_are_not_averaged(folder):
    rewrite(folder, "exact-s2", retimed)
    [row] = [row for row in summarise(find_records(folder).records).rows if row.label == "exact"]
    first = [json.loads((folder / f"exact-s{s}" / "record.json").read_text())["cost"]["train_step_ms"] for s in (0, 1)]
    assert row.values["train_step_ms"].value == pytest.approx(sum(t["median"] for t in first) / 2)
    assert row.values["train_step_ms"].high == max(t["high"] for t in first)
    assert "its seeds were timed at different starts; the timings are those of seed 0, 1" in row.warnings
    assert row.values["val_bits_per_byte"].low is not None  # of all three


def test_the_later_of_two_starts_counts_where_both_have_as_many(folder):
    rewrite(folder, "exact-s1", retimed)
    shutil.rmtree(folder / "exact-s2")
    [row] = [row for row in summarise(find_records(folder).records).rows if row.label == "exact"]
    assert row.values["train_step_ms"].value > 290


def test_older_records_of_one_plan_are_of_one_start(folder):
    rewrite(folder, "*", lambda record: record.get("cost", {}).pop("timing_id", None))
    found = find_records(folder)
    assert {timing_set(r) for r in found.records} == {"the rounds of ."}
    summary = summarise(found.records)
    assert summary.rows[summary.best["train_step_ms"]].label == "mqa"
    (folder / "comparison.json").unlink()
    records = find_records(folder).records
    assert {timing_set(r) for r in records} == {None}
    assert summarise(records).rankings["train_step_ms"].reason == APART


def test_what_the_plan_no_longer_has_is_shown_apart(folder, parse):
    plan = json.loads((folder / "comparison.json").read_text())
    plan["cells"] = [cell for cell in plan["cells"] if cell["run"] not in ("exact-s2", "sdpa-s0", "sdpa-s1", "sdpa-s2")]
    (folder / "comparison.json").write_text(json.dumps(plan))
    summary = summarise(find_records(folder).records)
    rows = {row.title: row for row in summary.rows}
    assert [r["seed"] for r in rows["exact"].records] == [0, 1]
    gone = [title for title in rows if "no longer in the plan" in title]
    assert len(gone) == 2
    assert [title.split(" ")[0] for title in list(rows)[-2:]] == ["exact", "sdpa"]  # at the end
    assert rows[gone[1]].values  # shown
    assert "sdpa" not in {summary.rows[i].label for i in summary.best.values()}
    text = parse(write_report(folder).read_text(encoding="utf-8")).text
    assert text.count("no longer in the plan") > 3


def test_merged_folders_stand_side_by_side(folder, tmp_path):
    """Each comparison under a folder of its own, with its plan: rows are not mixed, and not ranked across."""
    both = tmp_path / "both"
    for name in ("a", "b"):
        shutil.copytree(folder, both / name)
    rewrite(both / "b", "*", lambda record: record.get("cost", {}).update(timing_id="rounds-b"))
    found = find_records(both)
    assert {r["source"] for r in found.records} == {"a", "b"}
    assert {r["run"] for r in found.records} >= {"a/exact-s0", "b/exact-s0", "a/gqa-s3"}  # the lost cell too
    summary = summarise(found.records)
    labels = [row.label for row in summary.rows]
    assert {"exact (folder=a)", "exact (folder=b)"} <= set(labels)
    assert len(labels) == 18
    assert summary.rankings["train_step_ms"].reason == APART
    assert all(len(row.records) == 3 + row.label.startswith("gqa") for row in summary.rows)


def test_one_timing_of_a_variant_is_on_one_line_of_the_csv(folder, tmp_path):
    first = json.loads((folder / "exact-s0" / "record.json").read_text())["cost"]
    timings = {key: first[key] for key in ("train_step_ms", "prefill_ms", "decode_ms_per_token", "train_tokens_per_s")}
    rewrite(folder, "exact-*", lambda record: record["cost"].update(timings))
    path = write_csv(find_records(folder).records, tmp_path / "s.csv")
    with path.open(newline="", encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["attention"] == "exact"]
    assert float(lines[0]["train_step_ms"]) == first["train_step_ms"]["median"]
    for key in (
        "train_step_ms",
        "train_step_ms_low",
        "train_step_ratio",
        "prefill_ms",
        "decode_ms_per_token_high",
        "train_tokens_per_s",
    ):
        assert [bool(line[key]) for line in lines] == [True, False, False], key
    assert [line["timed_with"] for line in lines] == ["", "exact-s0", "exact-s0"]
    assert all(line["val_bits_per_byte"] and line["train_peak_memory_bytes"] for line in lines)


def test_timings_of_their_own_stay_on_every_line(folder, tmp_path):
    path = write_csv(find_records(folder).records, tmp_path / "s.csv")
    with path.open(newline="", encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["attention"] == "exact"]
    assert len({line["train_step_ms_low"] for line in lines}) == 3
    assert {line["timed_with"] for line in lines} == {""}


def test_data_of_other_content_are_not_one_row(records):
    mine = [r for r in records if r["attention"] in ("exact", "sdpa")]
    for record in mine:
        record["data"] = {"sha256": "aaaaaaaaaaaa"}
    mine[2]["data"]["sha256"] = "bbbbbbbbbbbb"
    labels = [row.label for row in summarise(mine).rows]
    assert labels == ["exact (data=aaaaaaaa)", "exact (data=bbbbbbbb)", "sdpa"]
