import csv
import io
import subprocess
import sys

from rich.console import Console

from attnzoo.report.bench_table import bench_csv, growth_lines, print_bench, regression_lines

SHAPE = {"level": "operator", "op": "forward", "B": 1, "H": 4, "G": 4, "D": 64, "dtype": "float32"}
FOUND = {
    "rows": [
        {"backend": "sdpa", "T": 1024, **SHAPE, "status": "ok", "reasons": [], "kernel": "sdpa/flash", "flops": 1e9,
         "peak_memory_bytes": 2 * 2**20, "share": 0.25,
         "timing": {"median": 10.0, "low": 9.0, "high": 11.0, "rounds": 9, "ratio": None}},
        {"backend": "sliding_window_of_a_long_name", "T": 1024, **SHAPE, "status": "ok", "reasons": [], "kernel": "blocks/flash",
         "timing": {"median": 1370.0, "low": 1290.0, "high": 1410.0, "rounds": 9,
                    "ratio": {"to": "sdpa", "median": 1.25, "low": 1.21, "high": 1.29}}},
        {"backend": "[red]evil[/red]", "T": 1024, **SHAPE, "status": "incorrect", "reasons": ["fails: causality"],
         "timing": None},
    ],
    "growth": [{"backend": "sdpa", **SHAPE, "lengths": [512, 1024], "quantity": "time", "exponent": 1.9, "low": 1.8,
                "high": 2.1, "declared": 2.0, "verdict": "as declared"}],
}  # fmt: skip


def test_the_table_shows_numbers_reasons_and_growth():
    console = Console(file=io.StringIO(), width=140)
    print_bench(FOUND, console)
    text = console.file.getvalue()
    for word in (
        "forward, B 1, H 4, D 64, float32",
        "[9, 11]",
        "[1.21, 1.29]",
        "1,370",
        "sliding_window_of_a_long_name",
        "2.0",
        "25",
        "incorrect",
        "fails: causality",
        "[red]evil[/red]",
        "T^1.90 (1.80 to 2.10), declared T^2",
    ):
        assert word in text, word


def test_csv_has_a_line_a_row():
    lines = list(csv.DictReader(io.StringIO(bench_csv(FOUND))))
    assert [line["backend"] for line in lines] == ["sdpa", "sliding_window_of_a_long_name", "[red]evil[/red]"]
    assert float(lines[0]["ms_median"]) == 10.0
    assert lines[2]["ms_median"] == ""
    assert lines[2]["reasons"] == "fails: causality"


def test_shapes_have_tables_of_their_own():
    half = [{**row, "dtype": "bfloat16"} for row in FOUND["rows"]]
    growth = [*FOUND["growth"], {**FOUND["growth"][0], "dtype": "bfloat16"}]
    console = Console(file=io.StringIO(), width=140)
    print_bench({"rows": FOUND["rows"] + half, "growth": growth}, console)
    for word in ("operator: forward, B 1, H 4, D 64, float32", "operator: forward, B 1, H 4, D 64, bfloat16"):
        assert word in console.file.getvalue(), word
    assert "sdpa, forward, B 1, H 4, D 64, bfloat16: time T^1.90" in console.file.getvalue()


def test_lines():
    assert growth_lines(FOUND["growth"])[0].startswith("sdpa, forward: time T^1.90")
    change = {"backend": "linear", "op": "forward", "T": 64, "what": "time", "by": "ms", "before": 1.0, "after": 2.0}
    assert regression_lines([change, {**change, "what": "status", "after": "failed"}]) == [
        "linear, forward, T 64: slower, 1 → 2 (ms)",
        "linear, forward, T 64: was ok, now failed",
    ]


def test_no_torch():
    code = "import sys, attnzoo.report.bench_table, attnzoo.measure.trend; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )
