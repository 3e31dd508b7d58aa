"""Records of other programs, or of nobody: whatever a field holds, every row is drawn, and nothing in it is obeyed."""

from __future__ import annotations

import csv
import io
import itertools
import json

import pytest
from rich.console import Console

from attnzoo.measure.record import Record
from attnzoo.report import print_table
from attnzoo.report.csv import flat, plain, write_csv
from attnzoo.report.html import report_html
from attnzoo.report.records import Found, dig, find_records, items, mapping, number, points
from attnzoo.report.rows import summarise

WRONG = [
    None,
    True,
    -1,
    0,
    1e400,
    10**400,
    "text",
    "",
    [],
    [1],
    [[1, 2, 3]],
    [None, {"a": 1}],
    {},
    {"a": {"b": []}},
    [["x", "y"]],
]
NAMES = ["exact", "sdpa"]


def paths(part, path=()):
    """Every place in a record, the inner ones of lists too."""
    inner = part.items() if isinstance(part, dict) else enumerate(part[:2]) if isinstance(part, list) else ()
    for name, value in inner:
        yield (*path, name)
        yield from paths(value, (*path, name))


def put(record, path, value):
    *parts, last = path
    for part in parts:
        record = record[part]
    record[last] = value


def draw(records):
    """Everything a reader may open."""
    console = Console(file=io.StringIO(), width=200, no_color=True)
    print_table(records, console)
    page = report_html(Found("x", [Record(r) for r in records]))
    return console.file.getvalue(), page, flat(records)


def two(records):
    return [r for r in records if r["attention"] in NAMES and r["seed"] < 2]


@pytest.mark.parametrize("start", range(24))
def test_wrong_types_are_drawn_as_missing(records, start):
    """Wrong values at every place of a record, some at once; both rows are still there."""
    base = two(records)
    wrong = itertools.cycle(WRONG[start % len(WRONG) :] + WRONG[: start % len(WRONG)])
    for path in list(paths(base[0]))[::-1][start::24]:  # the inner ones first
        if path != ("attention",):
            put(base[0], path, next(wrong))
    table, page, lines = draw(base)
    assert all(name in text for name in NAMES for text in (table, page))
    assert len(lines) == len(base)


@pytest.mark.parametrize("content", [[], [{}], [{"status": "ok"}], [{"status": None, "attention": None, "seed": {}}]])
def test_next_to_nothing_is_drawn(content):
    table, _, lines = draw(content)
    assert len(lines) == len(content)
    assert table.count("?") >= len(content)


ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202edlrow\u2066 \x9b31m\x00"


def test_escapes_reach_nobody(records, tmp_path):
    base = two(records)
    for record in base:
        record.update(
            attention=f"exact{ESCAPES}",
            warnings=[f"warned {ESCAPES}"],
            kernel_resolved=ESCAPES,
            swept={f"k{ESCAPES}": ESCAPES},
        )
        record["quality"]["task_accuracy"] = {f"task{ESCAPES}": 0.5}
        record["cost"]["train_step_ms"]["ratio"] = {"to": ESCAPES, "median": 1.0, "low": 0.9, "high": 1.1}
        record["leak"] = {"passed": False, "tests": [{"name": ESCAPES, "passed": False, "detail": ESCAPES}]}
    base.append({"status": "failed", "attention": "b", "seed": ESCAPES, "reasons": [ESCAPES]})
    table, page, _ = draw(base)
    sheet = write_csv(base, tmp_path / "s.csv").read_text(encoding="utf-8")
    for text in (table, page, sheet):
        assert not set(text) & set("\x1b\x07\x9b\x00\u202e\u2066")


def test_a_task_whose_name_has_a_dot_has_its_column_its_curve_and_its_cell(records):
    for record in records:
        for part in ("task_accuracy", "task_chance", "task_curve"):
            if held := record.get("quality", {}).get(part):
                record["quality"][part] = {"recall.v2": held["recall"]}
    table, page, lines = draw(records)
    assert "recall.v2" in table
    assert "Accuracy on recall.v2 over tokens" in page
    assert ">chance</text>" in page
    assert lines[0]["recall.v2_accuracy"] == records[0]["quality"]["task_accuracy"]["recall.v2"]


def test_a_name_of_many_lines_is_one_line(records):
    base = two(records)
    for record in base:
        record["attention"] = "a\nb\n\nc"
    assert summarise(base).rows[0].label == "a b c"


@pytest.mark.parametrize("start", list("=+-@|%"))
def test_no_cell_is_a_formula(records, tmp_path, start):
    bad = f"{start}cmd|' /C calc'!A0"
    base = two(records)
    base[0] |= {"attention": bad, "warnings": [bad], "positions": bad, "swept": {bad: bad}}
    with write_csv(base, tmp_path / "s.csv").open(newline="", encoding="utf-8") as file:
        cells = [cell for line in csv.reader(file) for cell in line]
    assert any(bad in cell for cell in cells)
    for cell in cells:
        if cell[:1] in tuple("=+-@|%"):
            float(cell)


@pytest.mark.parametrize(("value", "cell"), [
    (-1.5, -1.5), ("-1.5", "-1.5"), ("+2e3", "+2e3"), (None, None), (True, True), (" =1", "' =1"), ("a=b", "a=b"),
    ("\t=x", "'\t=x"), ([1], "[1]"),
])  # fmt: skip
def test_what_a_cell_becomes(value, cell):
    assert plain(value) == cell


def test_a_thousand_characters_do_not_widen_anything(records):
    base = two(records)
    long = "n" * 1000
    for record in base:
        record["attention"], record["quality"]["task_accuracy"] = long, {long: 0.5}
    base[0]["cost"]["train_step_ms"]["ratio"]["to"] = long
    row = summarise(base).rows[0]
    assert len(row.label) == 80
    assert all(len(column.title) <= 32 for column in summarise(base).columns)


@pytest.mark.parametrize("plan", [
    {"cells": None}, {"cells": "x"}, {"cells": [None, 3, {}]}, {"cells": [{"run": 3}]}, {"cells": [{"run": "../../etc"}]},
    {"cells": [{"run": "/etc"}]}, {"cells": {"run": "a"}}, {"command": ["x"]}, {"command": {"a": 1}, "cells": [{"run": ""}]},
])  # fmt: skip
def test_a_wrong_plan_loses_no_record(folder, plan):
    (folder / "comparison.json").write_text(json.dumps(plan))
    found = find_records(folder)
    assert len(found.records) == 27
    assert all(record["planned"] for record in found.records)
    assert "sliding_window" in report_html(found)


@pytest.mark.parametrize("swept", ["x", 3, [1], {"a": {"b": 1}}, {"a": [1, 2]}])
def test_what_a_plan_says_of_a_cell_may_be_anything(folder, swept):
    plan = json.loads((folder / "comparison.json").read_text())
    for cell in plan["cells"]:
        cell["swept"], cell["seed"] = swept, swept
    (folder / "comparison.json").write_text(json.dumps(plan))
    assert "sliding_window" in report_html(find_records(folder))
    assert len(flat(find_records(folder).records)) == 28


def test_readers_of_a_record():
    held = {
        "a": {
            "b": 1.5,
            "n": True,
            "big": 10**400,
            "nan": float("nan"),
            "list": [{"x": 1}, 3],
            "curve": [[1, 2], [1], 3, [1, None], [2, 4.5]],
        }
    }
    assert (dig(held, "a.b"), dig(held, "a.b.c", 7), dig(held, "z.b")) == (1.5, 7, None)
    dotted = {"quality": {"task_accuracy": {"copy.v2": 0.5, "copy": {"v2": 0.25}}}}
    assert dig(dotted, "quality.task_accuracy.copy.v2") == 0.5
    assert dig(dotted, "quality.task_accuracy.copy.v3", 7) == 7
    assert number(held, "a.b") == 1.5
    assert [number(held, f"a.{name}") for name in ("n", "big", "nan", "list", "z")] == [None] * 5
    assert mapping(held, "a") == held["a"]
    assert mapping(held, "a.b") == mapping(held, "z") == {}
    assert items(held, "a.list") == [{"x": 1}]
    assert items(held, "a") == items(held, "a.b") == []
    assert points(held, "a.curve") == [(1.0, 2.0), (2.0, 4.5)]
    assert points(held, "a.b") == []
