"""A time of a backend that no finished check stands behind is marked wherever it is shown; and text of files stays text."""

import csv
import io

from rich.console import Console

from attnzoo.report.bench_html import bench_html
from attnzoo.report.bench_rows import is_unverified, named
from attnzoo.report.bench_table import bench_csv, print_bench, regression_lines

SHAPE = {"level": "operator", "op": "forward", "B": 1, "H": 4, "D": 64, "dtype": "float32"}
ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\x00"


def row(name, verified, length=512, ms=2.0, **more):
    """``verified`` None: the row does not say, as those of `attnzoo bench`."""
    said = {} if verified is None else {"verified": verified}
    timing = {"median": ms, "low": ms * 0.9, "high": ms * 1.1, "rounds": 9}
    return (
        {"backend": name, "T": length, **SHAPE, "status": "ok", "reasons": [], "kernel": "k", "timing": timing}
        | said
        | more
    )


def shown(found):
    console = Console(file=io.StringIO(), width=200)
    print_bench(found, console)
    return console.file.getvalue()


def test_only_a_timed_row_that_says_so_is_unverified():
    assert [is_unverified(row("a", verified)) for verified in (None, True, False)] == [False, False, True]
    assert not is_unverified(row("a", False, timing=None))  # it shows no time to be wary of
    assert [named(row("a", verified)) for verified in (True, False)] == ["a", "a (unverified)"]


def test_the_mark_is_in_table_page_plot_and_csv(parse):
    rows = [
        row(name, verified, length) for name, verified in (("good", True), ("bad", False)) for length in (512, 1024)
    ]
    lines = [line.split() for line in shown({"rows": rows}).splitlines()]
    assert [line[1:3] for line in lines if line[:1] == ["512"]] == [["good", "2.00"], ["bad", "(unverified)"]]
    page = bench_html({"rows": rows})
    found = parse(page)
    assert [cells[0] for cells in found.rows if cells[1] == "1024"] == ["good", "bad (unverified)"]
    assert "bad (unverified): 2 ms at 512 tokens, k" in page
    assert ">bad (unverified)</text>" in page
    assert page.count('class="mark hollow"') == 2  # its two points
    lines = list(csv.DictReader(io.StringIO(bench_csv({"rows": [*rows, row("silent", None)]}))))
    assert [line["verified"] for line in lines] == ["True", "True", "False", "False", ""]


def test_escapes_of_a_benchmark_reach_nobody():
    bad = row(ESCAPES, False, kernel=ESCAPES, reasons=[ESCAPES], compile_s=2.0) | {"dtype": ESCAPES, "op": ESCAPES}
    growth = {"backend": ESCAPES, "op": ESCAPES, "quantity": ESCAPES, "exponent": 1.0, "low": 0.9, "high": 1.1,
              "declared": 1.0, "lengths": [1, 2], "verdict": ESCAPES}  # fmt: skip
    change = {"backend": ESCAPES, "op": ESCAPES, "T": 8, "what": "status", "after": ESCAPES}
    found = {"rows": [bad], "growth": [growth], "machine": {"device_name": ESCAPES}}
    for text in (shown(found), "".join(regression_lines([change])), bench_csv(found), bench_html(found)):
        assert not set(text) & set("\x1b\x07\x9b\x00\u202e")
