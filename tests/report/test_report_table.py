"""The terminal table at the widths people have."""

import io
import re

import pytest
from rich.console import Console

from attnzoo.report import print_table


def printed(records, width=None, **options):
    console = Console(file=io.StringIO(), width=width, force_terminal=width is not None, no_color=True, **options)
    print_table(records, console)
    text = console.file.getvalue()
    return re.sub(r"\x1b\[[\d;]*m", "", text) if width else text


@pytest.mark.parametrize("width", [100, 120, 140, None])
def test_nothing_is_cut(records, width):
    text = printed(records, width)
    assert "…" not in text
    for word in ("sliding_window", "bits/byte", "train step", "refused [4]", "2.341", "86.9", "correct", "leak"):
        assert word in text
    if width:
        assert max(map(len, text.splitlines())) <= width


def test_a_pipe_gets_plain_wide_text(records, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = printed(records)
    assert "\x1b" not in text  # neither styles nor what a record smuggles in
    assert "86.9 [" in text  # intervals fit


def test_reasons_are_below(records):
    text = printed(records)
    notes = [line for line in text.splitlines() if line.startswith("[")]
    assert notes[0].startswith("[1] mqa: seed 2 failed: NumericalError in blocks.1")
    assert notes[1] == "[2] block_sparse: speed withheld: leak test failed (suffix)"
    assert notes[2] == "[3] linear: speed withheld: correctness check failed (extend)"
    assert notes[3] == "[4] xformers: no CUDA device; xformers: no operator runs fp32 on cpu"


def test_markup_in_a_record_is_text(records):
    records[-1]["reasons"] = ["[bold]not[/bold] [/] markup"]
    assert "[bold]not[/bold] [/] markup" in printed(records)


def test_only_refused_cells(records):
    text = printed([r for r in records if r["status"] == "refused"])
    assert "refused [1]" in text
    assert "no CUDA device" in text


def test_no_records():
    assert "backend" in printed([])
