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
