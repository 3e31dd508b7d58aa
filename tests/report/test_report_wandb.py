"""The summary run, read back from what W&B wrote."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attnzoo.report import write_report
from attnzoo.report.records import find_records
from attnzoo.report.wandb_summary import log_summary

wandb = pytest.importorskip("wandb", reason="wandb is not installed")


def test_an_offline_run_holds_table_charts_and_numbers(folder):
    write_report(folder, wandb_mode="offline", group="night")
    [run] = (folder / "wandb").glob("offline-run-*")
    found = subprocess.run(
        [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(run)],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    for word in ("night", "summary", "bar/val_bits_per_byte", "scatter/val_bits_per_byte_against_train_step_ms",
                 "curves/val_loss_nats", "sliding_window/recall_accuracy", "xformers/status"):  # fmt: skip
        assert word in found, word
    [table] = [json.loads(p.read_text()) for p in run.rglob("*.table.json") if p.name.startswith("rows")]
    assert [line[0] for line in table["data"]][-2:] == ["xformers", "flex"]
    by_name = dict(zip(table["columns"], table["data"][4], strict=True))
    assert (by_name["backend"], by_name["leak"]) == ("sliding_window", "pass")
    assert by_name["val_bits_per_byte"] == pytest.approx(2.341, abs=1e-3)
    shutil.rmtree(run)


def test_disabled_writes_nothing(folder):
    write_report(folder, wandb_mode="disabled")
    assert not (folder / "wandb").exists()


def test_a_dead_wandb_is_said_once_and_the_report_is_there(folder, monkeypatch, capsys):
    def dead(*args, **kwargs):
        raise wandb.errors.CommError("the server is gone")

    monkeypatch.setattr(wandb, "init", dead)
    assert write_report(folder, wandb_mode="offline").exists()
    assert capsys.readouterr().err.count("the server is gone") == 1
    assert log_summary(find_records(folder).records, folder)["mode"] == "disabled"


def test_the_numbers_of_the_summary_say_who_is_best_and_who_leaks(records):
    from attnzoo.report.rows import summarise
    from attnzoo.report.wandb_summary import _curves, _numbers

    summary = summarise(records)
    numbers = _numbers(summary)
    assert numbers["best/val_bits_per_byte"] == "sliding_window"
    assert numbers["best/recall_accuracy"] == "undecided at 3 seeds between sdpa, exact, gqa"
    assert (numbers["block_sparse/leak"], numbers["block_sparse/not_ranked"]) == ("fail", "LEAKS")
    assert (numbers["linear/correct"], numbers["linear/not_ranked"]) == ("fail", "incorrect")
    assert (numbers["exact/not_ranked"], numbers["exact/leak"], numbers["exact/correct"]) == ("", "pass", "pass")
    assert (numbers["flex/status"], numbers["mqa/status"]) == ("refused", "ok 2/3")
    assert numbers["exact/train_step_ms"] == pytest.approx(148.2)
    assert "linear/train_step_ms" not in numbers
    assert _curves(summarise([])) == {}
