"""Benchmarks and conformance results that lie in a folder as JSON: what `scripts/gpu.sh` and ``--out`` leave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnzoo.errors import RequestError
from attnzoo.report.bench_file import read_bench
from attnzoo.report.bench_html import write_bench_report
from attnzoo.report.bench_table import print_bench
from attnzoo.report.groups import clean


def find_benches(place: Path) -> dict[Path, dict[str, Any]]:
    """The JSON files at or directly in ``place`` that hold a benchmark's rows or a list of checks, in order of name.

    Raises:
        RequestError: a file that was named holds neither, or one has fields that cannot be.
    """
    paths = [place] if place.is_file() else sorted(place.glob("*.json"))
    read = {path: read_bench(path) for path in paths if path.suffix == ".json"}
    found = {path: held for path, held in read.items() if held is not None}
    if place.is_file() and not found:
        raise RequestError(f"{place} holds no benchmark", ["a benchmark's JSON has rows, a list of checks has checks"])
    return found


def show_benches(found: Mapping[Path, Mapping[str, Any]]) -> list[Path]:
    """Print each and write a page beside each benchmark; the paths of the pages."""
    pages = []
    for path, held in found.items():
        machine = held.get("machine") or {}
        names = ("device_name", "dtype", "torch", "git_commit")
        print(clean(f"{path.stem}: " + ", ".join(str(machine[n]) for n in names if machine.get(n))))
        if held.get("rows") is not None:
            print_bench(held)
            pages.append(write_bench_report(held, path.with_suffix(".html")))
        for line in check_lines(held.get("checks") or ()):
            print(clean(line))
    return pages


def check_lines(checks: Any) -> list[str]:
    """'linear, bfloat16: passed', or what failed, or why it was refused; one a report."""
    lines = []
    for report in checks:
        failed = [test["name"] for test in report["tests"] if not test["passed"]]
        word = "passed" if report["passed"] else f"FAILED {', '.join(failed)}" if failed else "not run"
        why = f" ({'; '.join(report['refused'])})" if report["refused"] else ""
        lines.append(f"{report['subject']}, {', '.join(report['dtypes'])}: {word}{why}")
    return lines
