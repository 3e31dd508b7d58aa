"""Tests by backend: the leak matrix and the correctness matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnzoo.report.groups import clean, distinct, line
from attnzoo.report.records import items, number
from attnzoo.report.rows import Row


@dataclass(frozen=True)
class Mark:
    """One cell: pass, fail, skip or none (the test was not run), what stands there, and the hover text."""

    verdict: str
    text: str
    note: str = ""


@dataclass
class Matrix:
    """Test names across, rows down."""

    names: list[str] = field(default_factory=list)
    lines: list[tuple[Row, list[Mark]]] = field(default_factory=list)

    @property
    def failures(self) -> list[tuple[str, str, Mark]]:
        """(backend, test, mark) of everything that failed."""
        cells = ((row, name, mark) for row, marks in self.lines for name, mark in zip(self.names, marks, strict=True))
        return [(row.title, name, mark) for row, name, mark in cells if mark.verdict == "fail"]


def matrix(rows: Sequence[Row], part: str) -> Matrix:
    """Collect ``record[part]["tests"]`` of all seeds; a test that failed in one seed or case failed."""
    tests = {id(row): [t for record in row.good for t in items(record, f"{part}.tests")] for row in rows}
    names = distinct(line(test.get("name")) for its in tests.values() for test in its)
    lines = [
        (row, [_mark([test for test in tests[id(row)] if line(test.get("name")) == name]) for name in names])
        for row in rows
    ]
    return Matrix(names, lines)


def _mark(tests: Sequence[Mapping[str, Any]]) -> Mark:
    failed = [test for test in tests if test.get("passed") is False]
    ran = [test for test in tests if test.get("passed") is not None and not test.get("skipped")]
    if failed:
        positions = [p for test in failed if (p := number(test, "first_leaking_position")) is not None]
        where = f" at {min(positions)}" if positions else f" {len(failed)} of {len(ran)}" if len(ran) > 1 else ""
        return Mark("fail", f"fail{where}", _note(failed))
    if ran:
        return Mark("pass", "pass", _note(ran) or f"{len(ran)} passed")
    return Mark("skip", "skipped", _note(tests)) if tests else Mark("none", "–")


def _note(tests: Sequence[Mapping[str, Any]]) -> str:
    """The largest change and the first few details."""
    changes = [change for test in tests if (change := number(test, "max_change")) is not None]
    details = distinct(clean(test.get("detail") or "") for test in tests)[:3]
    return "; ".join([*([f"largest change {max(changes):.3g}"] if changes else []), *details])
