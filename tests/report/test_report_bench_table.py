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
        {"backend": "[red]evil[/red]", "T": 1024, **SHAPE, "status": "incorrect", "reasons": ["fails: causality"],
         "timing": None},
    ],
    "growth": [{"backend": "sdpa", "op": "forward", "quantity": "time", "exponent": 1.9, "low": 1.8, "high": 2.1,
                "declared": 2.0, "verdict": "as declared"}],
}  # fmt: skip


def test_the_table_shows_numbers_reasons_and_growth():
    console = Console(file=io.StringIO(), width=140)
    print_bench(FOUND, console)
    text = console.file.getvalue()
    for word in (
        "9 to 11",
        "2.0",
        "25%",
        "incorrect",
        "fails: causality",
        "[red]evil[/red]",
        "T^1.90 (1.80 to 2.10), declared T^2",
    ):
        assert word in text, word


def test_csv_has_a_line_a_row():
    lines = list(csv.DictReader(io.StringIO(bench_csv(FOUND))))
    assert [line["backend"] for line in lines] == ["sdpa", "[red]evil[/red]"]
    assert float(lines[0]["ms_median"]) == 10.0
    assert lines[1]["ms_median"] == ""
    assert lines[1]["reasons"] == "fails: causality"


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
