"""What is told of rows in words and marks: labels, titles, facts, findings, and what goes to Weights & Biases."""

import io
import itertools
import json

import pytest
from rich.console import Console

from attnzoo.report.columns import Column
from attnzoo.report.groups import groups_of, labels_of
from attnzoo.report.html import _environment, _facts, _findings, _samples, _title, report_html
from attnzoo.report.matrix import matrix
from attnzoo.report.page import render
from attnzoo.report.records import LARGEST, Found, find_records, number, timing_set
from attnzoo.report.rows import Row, Summary, summarise
from attnzoo.report.table import _DROPPED, _table, print_table
from attnzoo.report.values import Value


def bare(name, seed=0, **more):
    return {"status": "ok", "attention": name, "seed": seed, "options": {}} | more


def labels(*records, grouped=True):
    return labels_of(groups_of(records) if grouped else [[record] for record in records], grouped)


# ---- which records are one row, and what it is called


@pytest.mark.parametrize(
    ("key", "one", "two", "told"),
    [
        ("kernel_requested", "auto", "flash", ["a (kernel_requested=auto)", "a (kernel_requested=flash)"]),
        ("positions", "rope", "alibi", ["a (positions=rope)", "a (positions=alibi)"]),
        ("n_heads", 4, 8, ["a (n_heads=4)", "a (n_heads=8)"]),
        ("n_kv_heads", 1, 2, ["a (n_kv_heads=1)", "a (n_kv_heads=2)"]),
        ("swept", {"model.n_layers": 2}, {"model.n_layers": 4}, ["a (model.n_layers=2)", "a (model.n_layers=4)"]),
        ("source", "x", "y", ["a (folder=x)", "a (folder=y)"]),
        ("data", {"sha256": "1" * 20}, {"sha256": "2" * 20}, ["a (data=11111111)", "a (data=22222222)"]),
        (
            "quality",
            {"data": {"sha256": "3" * 9}},
            {"data": {"sha256": "4" * 9}},
            ["a (data=33333333)", "a (data=44444444)"],
        ),
        ("cost", {"parameters": 1}, {"parameters": 2}, ["a", "a #2"]),
        ("quality", {"tokens_seen": 1}, {"tokens_seen": 2}, ["a", "a #2"]),
        ("environment", {"device": "cpu"}, {"device": "cuda"}, ["a", "a #2"]),
        ("environment", {"cpu": "x"}, {"cpu": "y"}, ["a", "a #2"]),
        ("environment", {"threads": 1}, {"threads": 2}, ["a", "a #2"]),
        ("environment", {"precision": "fp32"}, {"precision": "bf16"}, ["a", "a #2"]),
        ("environment", {"tf32": True}, {"tf32": False}, ["a", "a #2"]),
        ("environment", {"compiled": True}, {"compiled": False}, ["a", "a #2"]),
        ("environment", {"gpu": {"name": "x"}}, {"gpu": {"name": "y"}}, ["a", "a #2"]),
        ("cost", {"shape": {"n_tokens": 1}}, {"shape": {"n_tokens": 2}}, ["a", "a #2"]),
    ],
)
def test_rows_that_differ_in_it_are_apart_and_say_so(key, one, two, told):
    assert labels(bare("a", 0, **{key: one}), bare("a", 1, **{key: two})) == told
    assert labels(bare("a", 0, **{key: one}), bare("a", 1, **{key: one})) == ["a"]


def test_the_data_of_the_record_itself_are_named_before_those_of_its_score():
    both = [bare("a", 0, data={"sha256": n * 9}, quality={"data": {"sha256": "9" * 9}}) for n in "12"]
    assert labels(*both) == ["a (data=11111111)", "a (data=22222222)"]


def test_the_order_of_options_and_an_empty_setting_set_nothing_apart():
    one, two = {"options": {"a": 1, "b": 2}, "swept": {}}, {"options": {"b": 2, "a": 1}, "swept": None}
    assert labels(bare("a", 0, **one), bare("a", 1, **two)) == ["a"]
    assert labels(bare("a", 0, **one), bare("a", 1, options={"a": 1})) == [
        'a (options={"a": 1, "b": 2})', 'a (options={"a": 1})',
    ]  # fmt: skip


def test_a_label_names_only_what_tells_its_own_backend_apart():
    mixed = [
        bare("a", kernel_requested="auto"),
        bare("b", kernel_requested="flash"),
        bare("b", kernel_requested="auto"),
    ]
    assert labels(*mixed) == ["a", "b (kernel_requested=flash)", "b (kernel_requested=auto)"]
    assert labels(bare(""), bare(None)) == ["?", "? #2"]
    assert labels(bare("a", 0, cost={"parameters": 1}), bare("a", 0, cost={"parameters": 2}), bare("a #2")) == [
        "a", "a #2", "a #2 #2",
    ]  # fmt: skip


def test_cells_are_named_after_their_own_seed():
    assert labels(bare("a", 3), bare("a", 5), bare("b", 3), grouped=False) == ["a (seed=3)", "a (seed=5)", "b (seed=3)"]
    assert labels(bare("a", 3), bare("b", 3), grouped=False) == ["a", "b"]  # one seed in all: nothing to tell


def test_a_cell_without_a_record_joins_what_it_could_be_of():
    lost = {"status": "interrupted", "attention": "a", "seed": 1}
    first, second = bare("a", 0, kernel_requested="auto"), bare("a", 0, kernel_requested="flash")
    assert groups_of([lost, first, second]) == [[lost, first], [second]]
    assert groups_of([lost, bare("a", 1), first]) == [[lost, first], [bare("a", 1)]]
    narrow, wide = bare("a", 0, swept={"k": 1, "l": 1}), bare("a", 0, swept={"k": 2})
    assert groups_of([lost | {"swept": {"l": 1, "k": 1}}, wide, narrow]) == [
        [lost | {"swept": {"l": 1, "k": 1}}, narrow], [wide],
    ]  # fmt: skip
    assert groups_of([lost, bare("b")]) == [[lost], [bare("b")]]
    assert groups_of([bare("a", 0, planned=True), bare("a", 1, planned=False)]) == [
        [bare("a", 0, planned=True)], [bare("a", 1, planned=False)],
    ]  # fmt: skip


def test_a_failed_cell_has_no_sizes_to_differ_in():
    failed = bare("a", 1, status="failed", cost={"parameters": 9})
    assert len(groups_of([bare("a", 0, cost={"parameters": 1}), failed])) == 1


# ---- a row


def test_what_a_row_says_of_itself():
    ok, failed = bare("a", 0, kernel_resolved="k1"), bare("a", 1, status="failed", kernel_resolved="k2")
    row = Row("a", [ok, failed], "ok", reasons=["why"], warnings=["beware"], unranked=["LEAKS", "diverged"])
    assert (row.title, row.status_text, row.kernel) == ("a (LEAKS, diverged)", "ok 1/2", "k1, k2")
    assert (row.said, row.note) == (["why", "beware"], "a: why; beware")
    assert Row("a", [ok], "ok", reasons=["a: why"]).note == "a: why"
    assert Row("a", [failed], "failed").status_text == "failed"
    assert Row("a", [ok], "ok").title == "a"


def column(key, **more):
    return Column(key, key, "ms", f"cost.{key}", "speed", "", **more)


def test_a_number_with_its_interval():
    rows = [
        Row("a", [], "ok", values={"t": Value(2000.0, 1000.0, 4000.0), "q": Value(1.5, 1.25, 1.75)}),
        Row("b", [], "ok"),
    ]
    t, q = column("t", timing=True, scale=1000.0, decimals=1), column("q", decimals=2)
    summary = Summary(rows, [t, q])
    assert [summary.text(rows[0], t, interval=i) for i in (False, True)] == ["2.0", "2.0 [1.0, 4.0]"]
    assert summary.text(rows[0], q, interval=True) == "1.50 ± 0.25"
    assert summary.text(rows[1], q) == "–"
    assert summary.filled(q) == rows[:1]
    rows[0].values["q"] = Value(1.5)
    assert summary.text(rows[0], q, interval=True) == "1.50"
    assert summary.shown(column("t", scale=1000.0), 500.0) == "0.50"  # decimals of the column: 2.00


def test_the_row_of_what_leaks_or_fails_has_no_speed_and_takes_no_part(records):
    rows = {row.label: row for row in summarise(records).rows}
    assert (rows["block_sparse"].leak, rows["linear"].correct) == ("fail", "fail")
    assert rows["block_sparse"].unranked == ["LEAKS"]
    assert rows["linear"].unranked == ["incorrect"]
    assert "train_step_ms" not in rows["block_sparse"].values
    assert rows["exact"].timing_set == "rounds-1"
    assert rows["flex"].timing_set is None
    for record in records:
        if record["attention"] == "exact":
            record["planned"] = False
            record["warnings"] = ["the training diverged at step 3"] if record["seed"] == 1 else []
    [exact] = [row for row in summarise(records).rows if row.label == "exact"]
    assert exact.unranked == ["diverged", "no longer in the plan"]


def test_the_remarks_name_the_columns_and_the_rows(records):
    summary = summarise(records)
    said = summary.remarks
    assert said[0].startswith("marked: better than every other row")
    assert said[-1] == "not ranked: block_sparse (LEAKS), linear (incorrect)"
    assert "no best in recall: undecided at 3 seeds between sdpa, exact, gqa" in said
    assert not any("perplexity" in words for words in said)  # in the CSV alone
    assert summary.best_in(summary.rows[4]) == [key for key, n in summary.best.items() if n == 4]
    assert "val_bits_per_byte" in summary.best_in(summary.rows[4])
    for record in records:
        record["planned"] = record["attention"] != "flex"
    assert summarise(records).remarks[-1] == said[-1]  # a row without numbers has none to rank


# ---- the terminal


def test_a_narrow_terminal_goes_without_the_first_of_the_list_first(records):
    summary = summarise(records)
    heads = [[c.header.split("\n")[0] for c in _table(summary, _DROPPED[:n]).columns] for n in range(len(_DROPPED) + 1)]
    lost = [set(a) - set(b) for a, b in itertools.pairwise(heads)]
    assert lost == [
        {"FLOPs/step"},
        set(),  # these records have no share of the matrix-product rate
        {"cache"},
        {"prefill"},
        {"params"},
        set(),
        {"kernel"},
        set(),
        {"step × sdpa"},
        {"decode"},
    ]
    assert "kernel" in heads[0]
    texts = [next(iter(_table(summary, _DROPPED[:n]).columns[2].cells)).plain for n in (5, 6)]
    assert ["±" in text for text in texts] == [True, False]


def test_rows_of_cells_or_of_backends_and_a_name_folds_where_it_must(records):
    def printed(width, **how):
        console = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True)
        print_table(records, console, **how)
        return console.file.getvalue()

    assert "exact (seed=2)" in printed(160, group=False)
    assert "exact (seed=2)" not in printed(160)
    records[0]["attention"] = "a_name_of_some_length_that_folds"
    narrow = printed(70)
    assert "decode" not in narrow  # all that can be dropped is
    assert "step × sdpa" not in narrow
    assert "…" not in "".join(line for line in narrow.splitlines() if line.startswith("a_name"))


def test_styles_of_marks_and_verdicts(records):
    summary = summarise(records)
    table = _table(summary, ())
    by = {c.header.split("\n")[0]: list(c.cells) for c in table.columns}
    assert [str(cell.style) for cell in by["bits/byte"]][4] == "bold cyan"
    assert sum(str(cell.style) == "bold cyan" for cell in by["bits/byte"]) == 1
    assert by["bits/byte"][-1].style == "dim"
    assert [cell.style for cell in by["backend"]] == ["", "", "", "", "", "bold red", "bold red", "", ""]
    assert [(cell.plain, cell.style) for cell in by["leak"]][5] == ("fail", "bold red")
    assert [(cell.plain, cell.style) for cell in by["correct"]][6:8] == [("fail", "bold red"), ("–", "dim")]
    assert [cell.plain for cell in by["status"]][3:8] == ["ok 2/3 [1]", "ok", "ok [2]", "ok [3]", "refused [4]"]


def test_seeds_are_counted_in_a_column_or_in_a_sentence(records):
    def printed(some, width=200):
        console = Console(file=io.StringIO(), width=width, force_terminal=width < 140, no_color=True)
        print_table(some, console)
        return console.file.getvalue()

    assert "3 seeds a row: mean ± half the 95 % interval" in printed(records)
    narrow = printed(records, 100)  # its numbers go without intervals
    assert "3 seeds a row: means" in narrow
    assert "±" not in narrow
    uneven = printed(records[1:])
    assert "seeds a row" not in uneven
    assert " seeds " in uneven
    assert "seeds a row" not in printed([r for r in records if r["seed"] == 0])


# ---- the page


def test_titles():
    rows = [
        Row("a", [bare("a")], "ok"),
        Row("b", [bare("b", status="oom")], "oom"),
        Row("c", [bare("c", status="oom")], "oom"),
    ]
    assert _title(rows) == "3 attention backends compared, 2 out of memory"
    assert _title(rows[:1]) == "a: what it costs, what it buys"
    assert _title([Row("a", [bare("a", swept={"k": n})], "ok") for n in (1, 2)]) == "2 settings compared"


def test_facts_span_the_first_start_and_the_last_end():
    def at(start, end, **more):
        return bare(
            "a", environment={"start": start, "end": end, "git_commit": "c" * 40, "threads": 1, "gpu": "GPU"} | more
        )

    found = Found(
        "x", [at("2026-01-02T03:04:05", "2026-01-02T09:00:00"), at("2026-01-01T01:02:03", "2026-01-02T05:00:00")]
    )
    facts = dict(_facts(found))
    assert facts["when"] == "2026-01-01 01:02 to 2026-01-02 09:00"
    assert facts["machine"] == "GPU · 1 thread"
    assert facts["commit"] == "c" * 12
    dirty = Found("x", [*found.records, at("2026", "2026", git_dirty=True)])
    assert dict(_facts(dirty))["commit"].endswith(" with uncommitted changes")


def test_the_environment_has_every_entry_and_all_values_that_differ():
    skipped = dict.fromkeys(("start", "end", "seconds", "stage_seconds", "command"), "x")
    one, two = (
        bare("a", environment={"git_dirty": False, "torch": "1", "none": None, **skipped}),
        bare("b", environment={"torch": "2"}),
    )
    assert _environment([one, two, one]) == [("git dirty", "False"), ("torch", "1 | 2")]
    assert dict(_facts(Found("x", [bare("a", environment={"start": "2026-01-02T03:04:05"})]))) == {
        "when": "2026-01-02 03:04", "seeds": "0",
    }  # fmt: skip


def test_findings_name_the_winner_or_say_why_there_is_none(records):
    found = {item["name"]: (item["who"], item["value"]) for item in _findings(summarise(records))}
    assert found["best on text"] == ("sliding_window", "2.341 bits/byte")
    assert found["best on recall"] == ("undecided", "at 3 seeds between sdpa, exact, gqa")
    assert set(found) == {
        "best on text", "best on recall", "fastest training step", "fastest decoding", "least training memory",
    }  # fmt: skip
    assert found["least training memory"] == ("mqa", "104 MiB")
    for record in records:
        for key, name in (("decode_ms_per_token", "gqa"), ("prefill_ms", "exact")):
            if record.get("cost"):
                fast = 0.5 if record["attention"] == name else 2.0
                ratio = {"median": fast, "low": 0.98 * fast, "high": 1.02 * fast}
                record["cost"][key] |= {part: 5 * value for part, value in ratio.items()}
                record["cost"][key]["ratio"] = {"to": "sdpa", **ratio}
    found = {item["name"]: item["who"] for item in _findings(summarise(records))}
    assert found["fastest decoding"] == "gqa"


def test_a_sample_is_that_of_its_row():
    rows = [Row(n, [bare(n, quality={"sample": text}) for text in texts], "ok")
            for n, texts in (("a", ["", "one", "two"]), ("b", [None]), ("c", ["three"]))]  # fmt: skip
    assert [(row.label, text) for row, text in _samples(rows)] == [("a", "one"), ("c", "three")]


def test_a_plan_of_commands_and_else_those_of_the_records(records, parse):
    other = [r for r in records if r["attention"] == "sdpa"]
    other[0]["environment"]["command"] = "attnzoo train x"
    text = parse(report_html(Found("x", other))).text
    assert text.index("attnzoo train x") < text.index("attnzoo compare 'backends=[exact,sdpa]'")
    planned = parse(report_html(Found("x", other, {"command": "attnzoo compare y"}))).text
    assert "attnzoo compare y" in planned
    assert "attnzoo train x" not in planned


def test_the_page_forbids_everything_but_its_own_script():
    page = render("bench.html.j2", title="<a&\x1b>", machine=[], plots=[], columns=[], tables=[], reasons=[], growth=((), []),
                  bars=((), []))  # fmt: skip
    assert "<h1>&lt;a&amp;\ufffd&gt;</h1>" in page
    assert "default-src &#39;none&#39;; style-src &#39;unsafe-inline&#39;; script-src &#39;sha256-" in page


# ---- tests by backend


def test_the_note_of_a_mark_has_the_largest_change_and_three_details():
    tests = [
        {"name": "t", "passed": False, "max_change": change, "detail": f"d{change}"} for change in (0.1, 0.4, 0.2, 0.3)
    ]
    [(_, [mark])] = matrix([Row("a", [bare("a", leak={"tests": tests})], "ok")], "leak").lines
    assert (mark.text, mark.note) == ("fail 4 of 4", "largest change 0.4; d0.1; d0.4; d0.2")
    passed = [{"name": "t", "passed": True}, {"name": "t", "passed": True}]
    [(_, [mark])] = matrix([Row("a", [bare("a", leak={"tests": passed})], "ok")], "leak").lines
    assert (mark.verdict, mark.text, mark.note) == ("pass", "pass", "2 passed")
    skipped = [{"name": "t", "passed": True, "skipped": True, "detail": "why"}]
    [(_, [mark])] = matrix([Row("a", [bare("a", leak={"tests": skipped})], "ok")], "leak").lines
    assert (mark.verdict, mark.text, mark.note) == ("skip", "skipped", "why")
    failed_run = bare("a", status="failed", leak={"tests": tests})
    assert matrix([Row("a", [failed_run], "failed")], "leak").names == []


# ---- records


def test_numbers_at_the_edge_and_signs():
    assert number({"a": LARGEST}, "a") == LARGEST
    assert number({"a": -LARGEST * 10}, "a") is None
    assert number({"a": -3}, "a") == -3
    assert number({"a": 0}, "a") == 0


def test_which_rounds_a_timing_is_of():
    assert timing_set({"cost": {"timing_id": 7}, "source": "x", "planned": True}) == "7"
    assert timing_set({"source": "x", "planned": True}) == "the rounds of x"
    assert timing_set({"source": "x", "planned": False}) is None
    assert timing_set({"planned": True}) is None


def test_where_a_record_is_from(tmp_path):
    for run in ("in/a", "in/late", "in/gone", "out"):
        path = tmp_path / run / "record.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"schema": 1, "status": "ok", "attention": run, "seed": 0}))
    cells = [
        {"run": "gone", "swept": {"k": 1}},
        {"run": "lost", "attention": "lost", "swept": {"k": 2}},
        {"run": "a", "swept": {}},
    ]
    (tmp_path / "in" / "comparison.json").write_text(json.dumps({"command": "c", "cells": cells}))
    found = find_records(tmp_path)
    assert [(r["run"], r["source"], r["planned"], r["status"]) for r in found.records] == [
        ("in/gone", "in", True, "ok"), ("in/lost", "in", True, "interrupted"), ("in/a", "in", True, "ok"),
        ("in/late", "in", False, "ok"), ("out", "", True, "ok"),
    ]  # fmt: skip
    assert [r.get("swept") for r in found.records] == [{"k": 1}, {"k": 2}, None, None, None]
    assert found.plan == {}
    assert find_records(tmp_path / "in").plan["command"] == "c"


# ---- Weights & Biases


def test_tables_charts_and_curves_to_the_letter(records, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    from attnzoo.report.wandb_summary import _charts, _curves, _plain, _tables

    drawn = {}

    def chart(kind):
        def draw(*arguments, **more):
            drawn[more.get("title")] = (kind, arguments[1:], more)
            return more.get("title")

        return draw

    for kind in ("bar", "scatter", "line_series"):
        monkeypatch.setattr(wandb.plot, kind, chart(kind))
    summary = summarise(records)
    tables = _tables(summary, records)
    by_name = [dict(zip(tables["rows"].columns, line, strict=True)) for line in tables["rows"].data]
    sparse, window, mqa = by_name[5], by_name[4], by_name[3]
    assert (sparse["backend"], sparse["leak"], sparse["correct"]) == ("block_sparse (LEAKS)", "fail", "pass")
    assert (mqa["status"], mqa["kernel"]) == ("ok 2/3", "sdpa/flash")
    assert "val_bits_per_byte" in window["best_in"]
    assert sparse["reasons"].startswith("speed withheld")
    assert sparse["train_step_ms"] is None
    assert window["train_peak_memory_bytes"] == 126 * 2**20  # as stored
    assert len(tables["cells"].data) == len(records)
    assert [_plain(value) for value in (None, 1.5, True, ["a"])] == [None, 1.5, True, "['a']"]
    charts = _charts(summary, tables["rows"])
    assert set(charts) == {
        "bar/val_bits_per_byte", "bar/train_step_ms", "bar/train_peak_memory_bytes", "bar/decode_ms_per_token",
        "bar/recall_accuracy", "scatter/val_bits_per_byte_against_train_step_ms",
        "scatter/val_bits_per_byte_against_train_peak_memory_bytes", "scatter/recall_accuracy_against_val_bits_per_byte",
    }  # fmt: skip
    assert drawn["bits/byte against train step"][:2] == ("scatter", ("train_step_ms", "val_bits_per_byte"))
    assert drawn["train step"][:2] == ("bar", ("backend", "train_step_ms"))
    drawn.clear()
    monkeypatch.setattr(wandb.plot, "line_series", lambda xs, ys, keys, **more: (xs, ys, keys, more))
    xs, ys, keys, more = _curves(summary)["curves/val_loss_nats"]
    assert keys[:2] == ["exact seed 0", "exact seed 1"]
    assert len(xs) == len(ys) == len(keys) == sum(r["status"] == "ok" for r in records)
    assert (xs[0][0], ys[0][-1]) == (102_400, records[0]["quality"]["curve"][-1][1])
    assert more == {"title": "validation loss, nats", "xname": "tokens"}
