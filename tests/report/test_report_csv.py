"""summary.csv read back."""

import csv

import pytest

from attnzoo.report import write_csv


def test_every_cell_with_its_reasons(records, tmp_path):
    path = write_csv(records, tmp_path / "summary.csv")
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(records)
    first, last = lines[0], lines[-1]
    assert float(first["train_step_ms"]) == records[0]["cost"]["train_step_ms"]["median"]
    assert float(first["train_step_ms_low"]) == records[0]["cost"]["train_step_ms"]["low"]
    assert float(first["recall_accuracy"]) == pytest.approx(records[0]["quality"]["task_accuracy"]["recall"])
    assert int(float(first["train_peak_memory_bytes"])) == records[0]["cost"]["train_peak_memory_bytes"]
    assert (last["attention"], last["status"], last["val_bits_per_byte"]) == ("flex", "refused", "")
    assert "CUDA" in last["reasons"]
    withheld = next(line for line in lines if line["attention"] == "linear")
    assert withheld["train_step_ms"] == ""
    assert "withheld" in withheld["reasons"]


def test_one_timing_that_stands_for_all_seeds_is_in_the_first_line_alone(records, tmp_path):
    """A timing that differs in any of the three is one of its own."""
    mine = [r | {"run": f"exact-s{r['seed']}"} for r in records if r["attention"] == "exact"]
    parts = ("train_step_ms", "prefill_ms", "decode_ms_per_token")
    for record in mine[1:]:
        record["cost"] |= {part: mine[0]["cost"][part] for part in parts}

    def lines():
        with write_csv(mine, tmp_path / "summary.csv").open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    found = lines()
    assert [line["timed_with"] for line in found] == ["", "exact-s0", "exact-s0"]
    assert [line["decode_ms_per_token"] != "" for line in found] == [True, False, False]
    assert all(line["val_bits_per_byte"] and line["parameters"] for line in found)
    for part in parts:
        held = mine[1]["cost"][part]
        mine[1]["cost"][part] = held | {"median": held["median"] * 2}
        assert [line["timed_with"] for line in lines()] == ["", "", "exact-s0"], part
        mine[1]["cost"][part] = held
