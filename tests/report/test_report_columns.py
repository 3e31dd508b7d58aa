"""Every column: where its number is, in which unit it is shown, which direction is better; one record from end to end."""

import csv
import io
import json

import pytest
from rich.console import Console

from attnzoo.report import print_table, write_csv
from attnzoo.report.columns import columns, three_digits
from attnzoo.report.groups import clean, distinct, line, short
from attnzoo.report.html import report_html
from attnzoo.report.records import Found
from attnzoo.report.rows import summarise


def timing(median, low, high, ratio=None):
    return {"median": median, "low": low, "high": high, "rounds": 15, "first": 9.0, "ratio": ratio}


def cell(name, seed=0, **cost):
    """Numbers that are all different, so that none can be taken for another."""
    ratio = {"to": "sdpa", "median": 1.91, "low": 1.81, "high": 2.01}
    base = {
        "parameters": 1_234_000, "train_flops": 4.56e9, "cache_bytes": 7 * 1024, "train_peak_memory_bytes": 89 * 2**20,
        "train_step_ms": timing(50.0, 48.0, 53.0, ratio), "prefill_ms": timing(6.0, 5.5, 6.75, ratio),
        "decode_ms_per_token": timing(0.75, 0.5, 1.25, ratio), "train_tokens_per_s": 20480.0, "timing_id": "r", "shape": {},
    }  # fmt: skip
    return {
        "schema": 1, "status": "ok", "reasons": [], "attention": name, "options": {"window": 4}, "seed": seed,
        "run": f"{name}-seed{seed}",
        "kernel_requested": "auto", "kernel_resolved": "blocks/flash", "positions": "rope", "n_heads": 8, "n_kv_heads": 2,
        "config_hash": "abc123", "cost": base | cost, "leak": {"passed": True}, "correct": {"passed": True},
        "quality": {"val_loss_nats": 1.7, "val_bits_per_byte": 2.4526, "val_perplexity": 5.474, "tokens_seen": 1000,
                    "task_accuracy": {"recall": 0.873}, "task_chance": {"recall": 0.1}},
        "environment": {"device": "cpu", "cpu": "Some CPU", "precision": "fp32", "threads": 2, "python": "3.11.7",
                        "torch": "2.13.0", "git_commit": "c0ffee", "git_dirty": True,
                        "start": "2026-01-02T03:04:05", "end": "2026-01-02T04:05:06"},
    }  # fmt: skip


# key: title, unit, text, kind, better, where it is shown
SHOWN = {
    "val_bits_per_byte": ("bits/byte", "", "2.453", "quality", "low", "everywhere"),
    "val_loss_nats": ("val loss", "nats", "1.700", "quality", "low", "csv"),
    "val_perplexity": ("perplexity", "", "5.47", "quality", "low", "csv"),
    "recall_accuracy": ("recall", "acc.", "0.87", "quality", "high", "everywhere"),
    "train_step_ms": ("train step", "ms", "50.0 [48.0, 53.0]", "speed", "low", "everywhere"),
    "train_step_ratio": ("step × sdpa", "", "1.91 [1.81, 2.01]", "speed", "low", "everywhere"),
    "train_peak_memory_bytes": ("peak mem", "MiB", "89.0", "memory", "low", "everywhere"),
    "train_tokens_per_s": ("throughput", "tokens/s", "20,480", "speed", None, "csv"),
    "prefill_ms": ("prefill", "ms", "6.00 [5.50, 6.75]", "speed", "low", "everywhere"),
    "decode_ms_per_token": ("decode", "ms/token", "0.750 [0.500, 1.250]", "speed", "low", "everywhere"),
    "cache_bytes": ("cache", "KiB", "7.00", "memory", "low", "everywhere"),
    "parameters": ("params", "M", "1.23", "size", None, "everywhere"),
    "train_flops": ("FLOPs/step", "G", "4.56", "size", None, "everywhere"),
}


def test_every_column_with_its_unit_and_direction():
    summary = summarise([cell("mine")])
    found = {
        c.key: (c.title, c.unit, summary.text(summary.rows[0], c, interval=True), c.kind, c.better, c.shown)
        for c in summary.columns
    }
    assert found == SHOWN
    assert list(found) == list(SHOWN)
    assert [c.key for c in summary.page] == [key for key, words in SHOWN.items() if words[-1] != "csv"]


def test_a_ratio_is_named_after_its_one_baseline():
    two = [cell("a"), cell("b", train_step_ms=timing(1.0, 1.0, 1.0, {"to": "c", "median": 1.0}))]
    assert next(c.title for c in columns(two) if c.key == "train_step_ratio") == "step × baseline"
    assert next(c.title for c in columns(two[1:]) if c.key == "train_step_ratio") == "step × c"


def test_a_line_of_the_csv(tmp_path):
    with write_csv([cell("mine", 3)], tmp_path / "s.csv").open(newline="", encoding="utf-8") as file:
        [found] = csv.DictReader(file)
    assert found == {
        "run": "mine-seed3", "attention": "mine", "seed": "3", "status": "ok", "reasons": "", "warnings": "",
        "best_in": "", "not_ranked": "",
        "options": '{"window": 4}', "positions": "rope", "n_heads": "8", "n_kv_heads": "2", "kernel_requested": "auto",
        "kernel_resolved": "blocks/flash", "config_hash": "abc123", "timed_with": "", "val_bits_per_byte": "2.4526",
        "val_loss_nats": "1.7", "val_perplexity": "5.474", "recall_accuracy": "0.873", "train_step_ms": "50.0",
        "train_step_ms_low": "48.0", "train_step_ms_high": "53.0", "train_step_ratio": "1.91", "train_step_ratio_low": "1.81",
        "train_step_ratio_high": "2.01", "train_peak_memory_bytes": str(89 * 2**20), "train_tokens_per_s": "20480.0",
        "train_matmul_share": "",
        "prefill_ms": "6.0", "prefill_ms_low": "5.5", "prefill_ms_high": "6.75", "decode_ms_per_token": "0.75",
        "decode_ms_per_token_low": "0.5", "decode_ms_per_token_high": "1.25", "cache_bytes": "7168", "parameters": "1234000",
        "train_flops": "4560000000.0", "leak_passed": "True", "correct_passed": "True", "device": "cpu", "cpu": "Some CPU",
        "precision": "fp32", "threads": "2", "python": "3.11.7", "torch": "2.13.0", "git_commit": "c0ffee", "git_dirty": "True",
        "start": "2026-01-02T03:04:05", "end": "2026-01-02T04:05:06",
    }  # fmt: skip


def test_swept_keys_have_columns_of_their_own(tmp_path):
    two = [cell("mine") | {"swept": {"model.n_layers": n, "seed": 0, "attention": "x"}} for n in ("2", "4")]
    with write_csv(two, tmp_path / "s.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["model.n_layers"] for line in lines] == ["2", "4"]
    assert {line["attention"] for line in lines} == {"mine"}
    assert write_csv([], tmp_path / "e.csv").read_text() == "run,attention,seed,status,reasons\n"


def test_the_terminal_to_the_letter():
    console = Console(file=io.StringIO(), width=170, no_color=True)
    refused = {"status": "refused", "attention": "flex", "seed": 0, "reasons": ["flex: needs a GPU", "and time"]}
    print_table([cell("mine"), refused], console)
    lines = [" ".join(text.split()) for text in console.file.getvalue().splitlines() if text.strip()]
    assert lines[0] == "recall train step peak mem prefill decode cache params FLOPs/step"
    assert lines[1] == "backend status bits/byte acc. ms step × sdpa MiB ms ms/token KiB M G leak correct kernel"
    assert lines[3] == "mine ok 2.453 0.87 50.0 [48.0, 53.0] 1.91 89.0 6.00 0.750 7.00 1.23 4.56 pass pass blocks/flash"
    assert lines[4] == "flex refused [1] – – – – – – – – – – – – –"
    assert lines[5:] == ["[1] flex: needs a GPU; and time"]


def test_the_page_to_the_letter(parse):
    two = [cell("mine", s) for s in (0, 1)] + [cell("other", 0, parameters=5_000_000)]
    two[1]["quality"]["val_bits_per_byte"] = 2.4726
    page = parse(report_html(Found("x", two)))
    row = next(cells for cells in page.rows if cells[0].startswith("mine"))
    # 12.706 * 0.01414 / sqrt(2): Student's interval of two seeds
    assert row == ["mineblocks/flash", "ok", "pass", "pass", "2.463± 0.127", "0.87± 0.00", "50.048.0–53.0", "1.911.81–2.01",
                   "89.0",
                   "6.005.50–6.75", "0.7500.500–1.250", "7.00", "1.23", "4.56"]  # fmt: skip
    for words in (
        "when2026-01-02 03:04 to 2026-01-02 04:05", "machineSome CPU · cpu · 2 threads", "precisionfp32",
        "commitc0ffee with uncommitted changes", "seeds0, 1", "model1.23M, 5M parameters", "training1k tokens",
    ):  # fmt: skip
        assert words in page.text, words


def test_many_sizes_are_a_range_that_says_how_many(parse):
    many = [cell(f"b{n}", parameters=n * 1_000_000) for n in range(1, 10)]
    assert "model1M to 9M parameters (9 sizes)" in parse(report_html(Found("x", many))).text
    assert "model1M, 2M, 3M parameters" in parse(report_html(Found("x", many[:3]))).text


def test_the_environment_and_the_command(parse):
    two = [cell("a"), cell("b")]
    two[1]["environment"] |= {"torch": "2.14.0", "command": "attnzoo train", "seconds": 5}
    text = parse(report_html(Found("x", two))).text
    assert "2.13.0 | 2.14.0" in text
    assert "attnzoo train" in text
    assert "seconds" not in text


def test_text_of_others():
    assert clean("a\x1bb\nc\td") == "a\ufffdb\nc\td"
    assert line(" a\n b\tc ") == "a b c"
    assert (short("abcde", 5), short("abcdef", 5)) == ("abcde", "abcd…")
    assert distinct(["b", None, "", 0, "b", "a"]) == ["b", "0", "a"]


@pytest.mark.parametrize(
    ("value", "text"), [(1370, "1,370"), (13.26, "13.3"), (0.1234, "0.123"), (0.00012, "0.00012"), (0, "0")]
)
def test_three_digits(value, text):
    assert three_digits(value) == text


def test_options_are_told_in_the_label_where_they_differ():
    two = [cell("a"), cell("a") | {"options": {"window": 8}}]
    assert [row.label for row in summarise(two).rows] == [f"a (options={json.dumps({'window': n})})" for n in (4, 8)]
    assert [row.label for row in summarise([cell("a"), cell("a")]).rows] == ["a", "a #2"]
