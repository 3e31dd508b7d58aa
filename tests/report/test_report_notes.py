"""Why a number is missing and what a reader must be warned of is said wherever the numbers are."""

import csv
import io
import json

import pytest
from rich.console import Console

from attnzoo.report import print_table, write_csv, write_report
from attnzoo.report.columns import columns
from attnzoo.report.notes import LONGEST, brief, gaps, has_diverged, reasons_of, verdict, warnings_of, why_withheld
from attnzoo.report.records import find_records
from attnzoo.report.rows import summarise

FAILED = {"median": None, "low": None, "high": None, "rounds": 0, "first": None, "ratio": None, "status": "failed",
          "reasons": ["RuntimeError: expected m1 and m2 to have the same dtype"]}  # fmt: skip


def row_of(records, label):
    return next(row for row in summarise(records).rows if row.label == label)


def everywhere(folder, parse, tmp_path):
    """The text of the terminal, of the page, and of the CSV."""
    records = find_records(folder).records
    console = Console(file=io.StringIO(), width=400, no_color=True)
    print_table(records, console)
    page = parse(write_report(folder).read_text(encoding="utf-8")).text
    return console.file.getvalue(), page, write_csv(records, tmp_path / "s.csv").read_text(encoding="utf-8")


@pytest.fixture
def change(folder):
    """Edit the records of a backend where they lie."""

    def edit(name, seeds=(0, 1, 2), **parts):
        for seed in seeds:
            path = folder / f"{name}-s{seed}" / "record.json"
            record = json.loads(path.read_text())
            for part, values in parts.items():
                record[part] = record[part] | values if isinstance(values, dict) else values
            path.write_text(json.dumps(record))

    return edit


def test_a_timing_that_failed_inside_an_ok_record(folder, change, parse, tmp_path):
    change(
        "exact",
        cost={"decode_ms_per_token": FAILED, "prefill_ms": FAILED | {"status": "interrupted", "reasons": ["too slow"]}},
    )
    for text in everywhere(folder, parse, tmp_path):
        assert "decode: failed: RuntimeError: expected m1 and m2 to have the same dtype" in text
        assert "prefill: interrupted: too slow" in text


def test_parts_that_failed_at_a_length_or_in_memory(folder, change, parse, tmp_path):
    sweep = [{"n_tokens": 512, "train_step_ms": 3.0}, {"n_tokens": 1024, "status": "oom", "reasons": ["needs 9 GiB"]}]
    change("exact", cost={"length_sweep": sweep, "train_memory": {"status": "failed", "reasons": ["the process died"]}})
    for text in everywhere(folder, parse, tmp_path):
        assert "length sweep: at 1024 tokens oom: needs 9 GiB" in text
        assert "peak memory: failed: the process died" in text


def test_a_number_that_is_missing_without_a_word(folder, change, parse, tmp_path):
    change("exact", cost={"decode_ms_per_token": None})
    change("sdpa", quality={"val_bits_per_byte": None}, seeds=(1,))
    for text in everywhere(folder, parse, tmp_path):
        assert "decode: no number in the record" in text
        assert "bits/byte: no number in the record" in text


def test_what_no_row_has_is_not_missed(records):
    for record in records:
        record.get("cost", {}).pop("cache_bytes", None)
        record.get("quality", {}).pop("task_accuracy", None)
    assert not any("no number" in reason for row in summarise(records).rows for reason in row.reasons)


def test_a_withheld_speed_is_explained_once(records):
    assert row_of(records, "linear").reasons == ["speed withheld: correctness check failed (extend)"]
    assert row_of(records, "block_sparse").reasons == ["speed withheld: leak test failed (suffix)"]


def test_warnings_stand_everywhere_and_name_their_seeds(folder, change, parse, tmp_path):
    change("exact", warnings=["the loss in training is far below that in validation"])
    change("sdpa", warnings=["decoding differs by 3e-5", "decoding differs by 3e-5"], seeds=(1,))
    table, page, sheet = everywhere(folder, parse, tmp_path)
    for text in (table, page):
        assert "exact: the loss in training" in text or "the loss in training is far below" in text
        assert text.count("seed 1: decoding differs by 3e-5") == 1
    lines = list(csv.DictReader(io.StringIO(sheet)))
    assert {line["warnings"] for line in lines if line["attention"] == "exact"} == {
        "the loss in training is far below that in validation"
    }
    assert [line["warnings"] for line in lines if line["attention"] == "sdpa"] == ["", "decoding differs by 3e-5", ""]


def test_a_note_a_row_in_the_order_of_the_table(records):
    records[0]["warnings"] = ["look twice"]
    row = row_of(records, "exact")
    assert (row.reasons, row.warnings) == ([], ["seed 0: look twice"])
    assert row.note == "exact: seed 0: look twice"
    assert row_of(records, "xformers").note.startswith("xformers: no CUDA device; xformers: no operator")


def test_reasons_of_seeds_that_agree_and_that_do_not():
    cell = {"status": "failed", "reasons": ["broke"]}
    assert reasons_of([cell | {"seed": 0}, cell | {"seed": 1}]) == ["broke"]
    mixed = [cell | {"seed": 0}, {"seed": 1, "status": "ok"}, {"seed": 2, "status": "oom", "reasons": []}]
    assert reasons_of(mixed) == ["seed 0 failed: broke", "seed 2 oom: no reason recorded"]
    assert reasons_of([{"status": "ok"}]) == []


def test_warnings_of_one_or_many():
    assert warnings_of([{"seed": 0, "warnings": ["a", "b"]}]) == ["a", "b"]
    assert warnings_of([{"seed": 0, "warnings": ["a"]}, {"seed": 1, "warnings": ["a", "b"]}, {"seed": 2}]) == [
        "seed 0, 1: a",
        "seed 1: b",
    ]


def test_a_long_reason_is_cut_and_says_how_long_it_was():
    assert brief("x" * LONGEST) == "x" * LONGEST
    assert brief("x" * 5000) == f"{'x' * LONGEST} … (5,000 characters in the record)"


def test_gaps_name_a_column_by_its_title(records):
    chosen = [column for column in columns(records) if column.key in ("prefill_ms", "cache_bytes")]
    assert gaps([{"cost": {"prefill_ms": {"median": 3.0}, "cache_bytes": 1}}], chosen) == []
    assert gaps([{"cost": {"prefill_ms": {"status": "oom"}}}], chosen) == [
        "prefill: oom: no reason recorded",
        "cache: no number in the record",
    ]
    assert gaps([{"cost": {"prefill_ms": {"median": 3.0, "status": "ok"}, "cache_bytes": 1}}], []) == []


@pytest.mark.parametrize(
    ("passed", "said"), [([True, True], "pass"), ([True, False], "fail"), ([True, None], "–"), ([None], "–"), ([], "–")]
)
def test_a_verdict_over_seeds(passed, said):
    assert verdict([{"leak": {"passed": each}} for each in passed], "leak") == said


def test_what_a_warning_says_is_not_said_twice():
    record = {"cost": {"prefill_ms": FAILED}, "warnings": [f"no timing of prefill_ms: {FAILED['reasons'][0]}"]}
    assert gaps([record], []) == []
    assert gaps([record | {"warnings": []}], []) == [f"prefill ms: failed: {FAILED['reasons'][0]}"]


def test_a_loss_above_guessing_has_diverged_whether_it_says_so_or_not():
    assert has_diverged({"quality": {"val_bits_per_byte": 49.7}})
    assert has_diverged({"warnings": ["training diverged"]})
    assert not has_diverged({"quality": {"val_bits_per_byte": 2.0}, "warnings": ["look"]})


def test_why_a_speed_is_withheld_where_one_seed_of_two_failed():
    good, bad = (
        {"correct": {"passed": True}},
        {"correct": {"passed": False, "tests": [{"name": "scale", "passed": False}]}},
    )
    assert why_withheld([good, bad]) == "correctness check failed (scale)"
    assert why_withheld([{"correct": {"passed": False}}]) == "correctness check failed"
    assert why_withheld([good | {"leak": {"passed": False}}, good]) == "leak test failed"
    assert why_withheld([good]) == "no correctness check of this backend on this device"
