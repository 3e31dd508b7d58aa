"""What a row shows, and what it withholds."""

import copy
import math
import statistics

import pytest

from attnzoo.report.columns import decimals_for, fixed
from attnzoo.report.rows import summarise


def row_of(summary, label):
    return next(row for row in summary.rows if row.label == label)


def test_seeds_are_gathered_and_every_backend_keeps_its_row(records):
    summary = summarise(records)
    assert [row.label for row in summary.rows] == [
        "exact", "sdpa", "gqa", "mqa", "sliding_window", "block_sparse", "linear", "xformers", "flex",
    ]  # fmt: skip
    assert [len(row.records) for row in summary.rows] == [3] * 9
    assert row_of(summary, "mqa").status_text == "ok 2/3"
    assert row_of(summary, "flex").status == "refused"
    assert len(row_of(summary, "xformers").reasons) == 2  # both of them, once


def test_mean_and_student_interval_over_seeds(records):
    values = [r["quality"]["val_bits_per_byte"] for r in records if r["attention"] == "sdpa"]
    value = row_of(summarise(records), "sdpa").values["val_bits_per_byte"]
    half = 4.303 * statistics.stdev(values) / math.sqrt(3)  # t quantile of two degrees of freedom
    assert value.value == pytest.approx(statistics.mean(values))
    assert (value.low, value.high) == pytest.approx((value.value - half, value.value + half))


def test_timings_of_seeds_are_the_median_in_the_hull_of_the_intervals(records):
    timings = [r["cost"]["train_step_ms"] for r in records if r["attention"] == "sdpa"]
    value = row_of(summarise(records), "sdpa").values["train_step_ms"]
    assert value.value == statistics.median(t["median"] for t in timings)
    assert (value.low, value.high) == (min(t["low"] for t in timings), max(t["high"] for t in timings))


@pytest.mark.parametrize("correct", [None, {"passed": False, "tests": []}, {"passed": True, "device": "cuda"}])
def test_no_speed_without_a_passed_check_on_the_same_device(records, correct):
    for record in records:
        if record["attention"] == "exact":
            record["correct"] = correct
    row = row_of(summarise(records), "exact")
    assert not row.values.keys() & {"train_step_ms", "train_step_ratio", "decode_ms_per_token", "train_tokens_per_s"}
    assert {"val_bits_per_byte", "train_peak_memory_bytes"} <= row.values.keys()
    assert any("withheld" in reason for reason in row.reasons)


def test_what_differs_in_more_than_the_seed_is_not_averaged(records):
    records = [r for r in records if r["attention"] == "sdpa"]
    wide, narrow, again = (copy.deepcopy(records[0]) for _ in range(3))
    wide["options"], narrow["cost"]["parameters"], again["seed"] = {"window": 8}, 7, 1
    narrow["seed"] = 5
    labels = [row.label for row in summarise([*records, wide, narrow, again]).rows]
    assert len(labels) == len(set(labels)) == 4
    assert 'sdpa (options={"window": 8})' in labels


def test_one_row_a_cell(records):
    summary = summarise(records, group=False)
    assert len(summary.rows) == len(records)
    assert summary.rows[1].label == "exact (seed=1)"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "fast", True])
def test_what_is_no_number_is_missing(records, value):
    records[0]["quality"]["val_bits_per_byte"] = value
    assert "val_bits_per_byte" not in summarise(records, group=False).rows[0].values


def test_decimals():
    assert decimals_for([86.9, 148.2]) == 1
    assert decimals_for([1.49, 2.31]) == 2
    assert decimals_for([104.0, 412.0]) == 0
    assert decimals_for([]) == 0
    assert fixed(1234.5, 0) == "1,234"
    assert fixed(0.0004, 2) == "0.0004"
