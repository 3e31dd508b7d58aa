"""The pictures: what a character and a stroke stand for, nothing unescaped, nothing loaded."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from rich.console import Console

from attnzoo.report.heat import panel, picture, pooled, read_blocks, relative, shade_blocks
from attnzoo.report.show import heads_html, notes, picture_svg, print_heads, print_picture

CAUSAL = [[1.0, 0, 0], [0.5, 0.5, 0], [0.001, -0.2, 0.8]]
HEAD = {"head": 0, "keys": 1.5, "entropy_nats": 0.4, "logit_min": -1.0, "logit_max": 2.0, "sink_share": 0.25,
        "row_sum": 1.0, "weights": CAUSAL}  # fmt: skip
SHOWN = {"backend": "<b>", "n_tokens": 3, "head": 0, "n_heads": 4, "options": {"window": 4}, "cut": {"window": 64},
         "symbols": [0, 1, 0], "weights": CAUSAL}  # fmt: skip


def test_half_blocks_hold_two_rows():
    assert read_blocks(CAUSAL) == ["█▄ ", "▀▀▀"]


def test_shades_go_with_size_and_only_zero_is_blank():
    assert shade_blocks([[1.0, 0.5, 0.25, 0.001, 0]]) == ["█▒░· "]
    assert relative([[0.0, 0.0], [-4.0, 2.0]]) == [[0.0, 0.0], [-1.0, 0.5]]


@pytest.mark.parametrize(("n", "most", "k"), [(8, 8, 1), (9, 8, 2), (64, 10, 7)])
def test_pooling_keeps_the_largest(n, most, k):
    matrix = [[-9.0 if (row, column) == (n - 1, 0) else 1.0 for column in range(n)] for row in range(n)]
    small, found = pooled(matrix, most)
    assert found == k
    assert len(small) == len(small[0]) <= most
    assert small[-1][0] == -9.0
    assert small[0][-1] == 1.0


def test_strokes_cover_exactly_what_is_not_zero():
    root = ElementTree.fromstring(picture(panel(CAUSAL, 0, 0, 30, "a<b"), 30, 30, "x"))
    cells = {}
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        for x, y, run in re.findall(r"M(\d+) ([\d.]+)h(\d+)", path.get("d")):
            cells |= {(int(float(y)), int(x) + n): path.get("stroke") for n in range(int(run))}
    assert set(cells) == {(r, c) for r in range(3) for c in range(3) if CAUSAL[r][c]}
    assert [cell for cell, colour in cells.items() if colour != cells[0, 0]] == [(2, 1)]  # the negative one


def test_a_picture_fits_its_width_and_says_what_was_changed(capsys):
    wide = {**SHOWN, "weights": [[1.0] * 100 for _ in range(100)]}
    for width in (20, 40, 80):
        print_picture(wide, width)
        said = capsys.readouterr().out.splitlines()
        assert all(len(line) <= width for line in said if line[:1] in "┌│└")
    assert notes(SHOWN)[1:] == [
        "cut down to fit: window (default 64)",
        "17% of the weights are negative; shades show sizes",
    ]
    assert "<b>" not in picture_svg(SHOWN)
    ElementTree.fromstring(picture_svg(SHOWN))


def test_the_page_of_a_model_is_escaped_and_complete():
    layers = [{"layer": 0, "backend": "exact", "heads": [HEAD, {**HEAD, "head": 1, "logit_min": None}]}]
    page = heads_html({"title": "<i>", "n_tokens": 3, "text": "a <script> & b", "layers": layers})
    assert "a &lt;script&gt; &amp; b" in page
    assert "<i>" not in page
    assert page.count('class="heat"') == 2
    assert "-1.0 to 2.0" in page
    assert not re.search(r'(src|href)="|url\(|@import', page)


def test_a_line_a_head():
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_heads([{"layer": 3, "backend": "exact", "heads": [HEAD]}], console)
    assert re.search(r"3\s+exact\s+0\s+1\.5\s+0\.40\s+-1\.0 to 2\.0\s+25\.0\s+1\.00", console.export_text())
