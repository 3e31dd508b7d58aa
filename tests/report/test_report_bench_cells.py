"""A benchmark's rows and bars as text: units, intervals, verdicts."""

import csv
import io

import pytest
from rich.console import Console

from attnzoo.report.bars import HEAD, bar_lines, bar_reasons
from attnzoo.report.bench_html import bench_html
from attnzoo.report.bench_rows import QUANTITIES, cells, growth_cells, parts, quantities, shape
from attnzoo.report.bench_table import bench_csv, compile_lines, growth_lines, print_bench, regression_lines
from attnzoo.report.benches import check_lines

ROW = {
    "backend": "a", "level": "model", "op": "train_step", "T": 512, "B": 2, "H": 4, "G": 4, "D": 16, "dtype": "float32",
    "status": "ok",
    "kernel": "k", "reasons": [], "flops": 5.5e9, "bytes": 77, "bound_ms": 1.5, "share": 0.257, "matmul_share": 0.334,
    "peak_memory_bytes": 6 * 2**20, "process_peak_bytes": 8 * 2**20, "state_bytes": 3 * 2**20, "tokens_per_s": 4321.4,
    "compile_s": 2.25, "parameters": 7.5e6,
    "timing": {"median": 10.5, "low": 9.25, "high": 12.0, "rounds": 9, "first": 30.0,
               "ratio": {"to": "b", "median": 1.255, "low": 1.145, "high": 1.355}},
}  # fmt: skip
TEXTS = {
    "timing.median": ("10.5", "[9.2, 12.0]"), "timing.ratio.median": ("1.25", "[1.15, 1.35]"), "timing.rounds": ("9", ""),
    "peak_memory_bytes": ("6.00", ""), "process_peak_bytes": ("8.00", ""), "state_bytes": ("3.00", ""), "share": ("26", ""),
    "tokens_per_s": ("4,321", ""), "matmul_share": ("33", ""), "compile_s": ("2.25", ""), "parameters": ("7.50", ""),
    "flops": ("5.50", ""),
}  # fmt: skip
UNITS = ["ms", "× base", "", "MiB", "MiB", "MiB", "%", "", "%", "s", "M", "G"]


def test_every_quantity_in_its_unit():
    found = {q.path: cells([ROW], q)[0][1:] for q in quantities([ROW])}
    assert {path: (text, between) for path, (text, between) in found.items()} == TEXTS
    assert [q.unit for q in QUANTITIES] == UNITS
    assert quantities([{"share": 0.5}]) == [q for q in QUANTITIES if q.path == "share"]


def test_what_a_row_lacks_is_a_dash():
    column = cells([ROW, {"timing": None}], QUANTITIES[0])
    assert [cell.text for cell in column] == ["10.5", "–"]
    assert (column[0].value, column[1].value, column[1].between) == (10.5, None, "")


def test_parts_are_told_apart_by_work_and_shape_in_order():
    rows = [ROW, {**ROW, "op": "decode"}, {**ROW, "n_kv_heads": 1}, {**ROW, "level": "peers"}, ROW]
    assert {title: len(held) for title, held in parts(rows).items()} == {
        "model: train_step, B 2, H 4, D 16, float32": 2, "model: decode, B 2, H 4, D 16, float32": 1,
        "model: train_step, B 2, H 4, G 1, D 16, float32": 1, "peers: train_step": 1,
    }  # fmt: skip
    assert shape({"dtype": "bf16", "B": 1}) == "B 1, bf16"


GROWTH = {"backend": "a", "op": "forward", "quantity": "time", "exponent": 1.514, "low": 1.4, "high": 1.6, "declared": 2.0,
          "lengths": [512, 1024, 2048], "verdict": "below"}  # fmt: skip


def test_growth_line_by_line():
    point = {**GROWTH, "low": 1.0, "high": 1.0, "declared": None, "verdict": None, "lengths": []}
    assert growth_cells([GROWTH, point, {**point, "declared": 1.0}]) == [
        ["a", "forward", "time", "T^1.51", "1.40 to 1.60", "T^2", "512 to 2,048", "below"],
        ["a", "forward", "time", "T^1.51", "", "", "", ""],
        ["a", "forward", "time", "T^1.51", "", "T^1", "", "too short to tell"],
    ]
    assert growth_lines([GROWTH, point]) == [
        "a, forward: time T^1.51 (1.40 to 1.60), declared T^2: below",
        "a, forward: time T^1.51",
    ]


BAR = {
    "work": "train", "quantity": "time", "bar": 1.5, "verdict": "met", "reasons": ["noisy"],
    "ours": {"name": "ours", "median": 12.34}, "peer": {"name": "theirs", "median": 1380.0},
    "ratio": {"median": 1.234, "low": 1.06, "high": 1.384},
}  # fmt: skip


def test_bars_in_their_columns():
    limited = {**BAR, "limit": {"name": "kernels", "median": 9.0}, "at_most": {"median": 2.0, "low": 2.0, "high": 2.0}}
    state = {
        **BAR,
        "quantity": "state_bytes",
        "ours": {"name": "o", "median": 2**21},
        "peer": {"name": "p"},
        "ratio": None,
        "bar": None,
    }
    assert HEAD._fields == ("work", "ours", "other", "ratio", "bar", "verdict", "at_most", "limit")
    assert HEAD == ("work", "ours", "the other", "ratio [95 %]", "bar", "", "at most", "by the limit")
    assert [tuple(line) for line in bar_lines([BAR, limited, state])] == [
        ("train", "ours: 12.3 ms", "theirs: 1,380 ms", "1.23 × [1.06, 1.38]", "1.50 ×", "met", "", ""),
        (
            "train",
            "ours: 12.3 ms",
            "theirs: 1,380 ms",
            "1.23 × [1.06, 1.38]",
            "1.50 ×",
            "met",
            "2.00 ×",
            "kernels: 9.00 ms",
        ),
        ("train, state", "o: 2.00 MiB", "p: –", "–", "–", "met", "", ""),
    ]
    assert bar_reasons([BAR, BAR, {**BAR, "reasons": ["slow"]}]) == ["train: noisy", "train: slow"]


def test_bars_in_the_terminal():
    console = Console(file=io.StringIO(), width=200)
    limited = {**BAR, "limit": {"name": "kernels", "median": 9.0}, "at_most": {"median": 2.0, "low": 2.0, "high": 2.0}}
    print_bench({"bars": [BAR, {**limited, "bar": None}, {**BAR, "work": "decode"}]}, console)
    assert console.file.getvalue().splitlines() == [
        "train",
        "  ours: 12.3 ms; theirs: 1,380 ms; 1.23 × [1.06, 1.38], bar 1.50 ×: met",
        "  ours: 12.3 ms; theirs: 1,380 ms; 1.23 × [1.06, 1.38], met",
        "    at most 2.00 × by kernels: 9.00 ms",
        "decode",
        "  ours: 12.3 ms; theirs: 1,380 ms; 1.23 × [1.06, 1.38], bar 1.50 ×: met",
        "train: noisy",
        "decode: noisy",
    ]


def test_a_benchmark_in_the_terminal_to_the_letter():
    console = Console(file=io.StringIO(), width=200)
    failed = {**ROW, "backend": "c", "status": "failed", "kernel": None, "timing": None, "reasons": ["broke"]}
    gone = {
        k: v
        for k, v in failed.items()
        if k in ("backend", "level", "op", "T", "B", "H", "D", "dtype", "status", "reasons", "kernel")
    }
    print_bench({"rows": [ROW, gone]}, console)
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines() if line.strip()]
    assert lines[0] == "model: train_step, B 2, H 4, D 16, float32"
    assert lines[-4:] == [
        "512 a 10.5 [9.2, 12.0] 1.25 [1.15, 1.35] 9 6.00 3.00 26 4,321 33 k",
        "512 c – – – – – – – – failed",
        "a, train_step, T 512: 2.2 s to compile",
        "c, train_step: broke",
    ]
    assert compile_lines([gone]) == []


def test_a_benchmark_as_csv_to_the_letter():
    bad = {**ROW, "backend": "=cmd()", "timing": None, "reasons": ["a", "b"]}
    lines = list(csv.DictReader(io.StringIO(bench_csv({"rows": [ROW, bad]}))))
    assert lines[0] == {
        "backend": "a", "level": "model", "op": "train_step", "T": "512", "B": "2", "H": "4", "G": "4", "n_kv_heads": "",
        "D": "16",
        "dtype": "float32", "status": "ok", "verified": "", "kernel": "k", "flops": "5500000000.0", "bytes": "77",
        "bound_ms": "1.5",
        "share": "0.257",
        "peak_memory_bytes": str(6 * 2**20), "process_peak_bytes": str(8 * 2**20), "state_bytes": str(3 * 2**20),
        "parameters": "7500000.0", "compile_s": "2.25", "ms_median": "10.5", "ms_low": "9.25", "ms_high": "12.0",
        "ms_rounds": "9",
        "ms_first": "30.0", "ratio_to": "b", "ratio_median": "1.255", "ratio_low": "1.145", "ratio_high": "1.355", "reasons": "",
    }  # fmt: skip
    assert (lines[1]["backend"], lines[1]["ms_median"], lines[1]["reasons"]) == ("'=cmd()", "", "a; b")


def test_regressions_line_by_line():
    change = {"backend": "a", "op": "forward", "T": None, "what": "memory", "by": "MiB", "before": 1.5, "after": 2.25}
    assert regression_lines([change, {**change, "what": "time", "T": 64}]) == [
        "a, forward: larger, 1.5 → 2.25 (MiB)",
        "a, forward, T 64: slower, 1.5 → 2.25 (MiB)",
    ]


def test_checks_line_by_line():
    report = {
        "subject": "a",
        "dtypes": ["float32", "bfloat16"],
        "passed": True,
        "refused": [],
        "tests": [{"name": "x", "passed": True}],
    }
    failed = {**report, "passed": False, "tests": [{"name": "x", "passed": False}, {"name": "y", "passed": True}]}
    unrun = {**report, "passed": False, "refused": ["no GPU", "no time"], "tests": []}
    assert check_lines([report, failed, unrun]) == [
        "a, float32, bfloat16: passed",
        "a, float32, bfloat16: FAILED x",
        "a, float32, bfloat16: not run (no GPU; no time)",
    ]


@pytest.mark.parametrize(("bench", "title"), [
    ({"rows": [ROW]}, "Cost of a over length"), ({"rows": [ROW, {**ROW, "backend": "b"}]}, "Cost over length, 2 backends"),
    ({"rows": [ROW], "bars": [BAR]}, "Against what people would use instead"),
])  # fmt: skip
def test_the_title_of_the_page(bench, title):
    assert f"<h1>{title}</h1>" in bench_html(bench)


def test_the_plot_of_the_page_needs_two_lengths():
    longer = {**ROW, "T": 1024, "timing": {"median": 20.0, "low": 19.0, "high": 21.0}, "peak_memory_bytes": 9 * 2**20}
    page = bench_html({"rows": [longer, ROW]})
    assert page.count('class="chart"') == 2
    assert "a: 10.5 ms at 512 tokens, k" in page
    assert "a: 9 MiB at 1,024 tokens, k" in page
    assert page.count('class="whisker"') == 2  # of the times alone
    assert 'class="chart"' not in bench_html({"rows": [ROW]})


def test_the_page_points_to_less_and_lists_only_what_has_a_reason():
    rows = [
        ROW,
        {**ROW, "T": 1024},
        {**ROW, "backend": "c", "status": "oom", "timing": None, "reasons": ["needs 4 GiB"]},
    ]
    page = bench_html({"rows": rows})
    assert "← time, ms" in page
    assert page.count("<dd>") == 1
    assert '<dt>c <span class="v-oom">oom</span></dt><dd>needs 4 GiB</dd>' in page


def test_ratios_have_two_decimals_whatever_their_size():
    large = {**ROW, "timing": {**ROW["timing"], "ratio": {"to": "b", "median": 112.344, "low": 99.0, "high": 120.0}}}
    assert cells([large], QUANTITIES[1])[0].text == "112.34"
