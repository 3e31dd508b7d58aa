"""The pieces of a picture one by one: which cell, which stroke, which marker, which number."""

import io
import math
import re

import pytest
from rich.console import Console

from attnzoo.report.heat import (
    FRAME,
    NEGATIVE,
    POSITIVE,
    caption,
    framed,
    panel,
    picture,
    pooled,
    read_blocks,
    relative,
)
from attnzoo.report.heat import shade_blocks as shades
from attnzoo.report.marks import Series, marker, swatch
from attnzoo.report.plots import plots
from attnzoo.report.rows import summarise
from attnzoo.report.scales import Axis, Scale, compact, linear_ticks, log_ticks
from attnzoo.report.show import NUMBERS, headline, heads_html, notes, numbers, picture_svg, print_heads, print_picture
from attnzoo.report.svg import Chart, _apart, _is_free, _places

HEAD = {"head": 2, "keys": 1.6, "entropy_nats": 0.444, "logit_min": -1.0, "logit_max": 2.0, "sink_share": 0.256,
        "row_sum": 0.987, "weights": [[1.0, 0.0], [0.25, -0.5]]}  # fmt: skip
SHOWN = {"backend": "local", "n_tokens": 4, "head": 1, "n_heads": 3, "options": {"a": 1, "b": 2}, "cut": {},
         "weights": [[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5]]}  # fmt: skip


# ---- weights


def test_rows_go_over_their_largest_size():
    assert relative([[1.0, 4.0], [-0.5, 0.25], [0.0, 0.0], []]) == [[0.25, 1.0], [-1.0, 0.5], [0.0, 0.0], []]


def test_pooling_takes_squares_of_an_oblong():
    matrix = [[1.0, 2.0, -9.0], [3.0, -4.0, 0.0], [0.0, 5.0, 6.0], [0.5, 0.0, 0.0], [7.0, 0.0, 0.0]]
    assert pooled(matrix, 3) == ([[-4.0, -9.0], [5.0, 6.0], [7.0, 0.0]], 2)
    assert pooled(matrix, 5) == (matrix, 1)
    assert pooled([[1.0, 2.0, 3.0, 4.0]], 2) == ([[2.0, 4.0]], 2)


def test_a_half_block_is_the_row_it_stands_for():
    assert read_blocks([[1, 0, 1, 0], [0, 1, 1, 0]]) == ["▀▄█ "]
    assert read_blocks([[0, 0], [0, 0], [-1, 0]]) == ["  ", "▀ "]


def test_a_shade_is_of_the_larger_of_two_rows():
    assert shades([[1.0, 0.2], [0.0, 1.0]]) == ["██"]
    assert shades([[1.0, 0.4], [1.0, -0.8]]) == ["█▓"]
    assert shades([[1.0, 0.0], [1.0, 0.0], [0.6, 0.3]]) == ["█ ", "█▒"]


def test_the_box_is_as_wide_as_its_lines():
    assert framed(["ab", "cd"]) == ["┌──┐", "│ab│", "│cd│", "└──┘"]


def strokes(svg):
    return [
        (c, float(o), d) for c, o, d in re.findall(r'<path stroke="(#\w+)" stroke-opacity="([\d.]+)" d="([^"]*)"', svg)
    ]


def test_strokes_have_the_place_the_sign_and_the_size_of_their_cells():
    matrix = [[1.0, 1.0, 0.0, 0.5], [-1.0, 0.001, 0.25, 0.25]]
    assert strokes(panel(matrix, 3, 4, 40, "n")) == [
        (NEGATIVE, 1.0, "M0 1.5h1"),
        (POSITIVE, 0.125, "M1 1.5h1"),
        (POSITIVE, 0.25, "M2 1.5h2"),
        (POSITIVE, 0.5, "M3 0.5h1"),
        (POSITIVE, 1.0, "M0 0.5h2"),
    ]
    assert strokes(panel(matrix, 3, 4, 40, "n", shaded=False)) == [(POSITIVE, 1.0, "M0 0.5h2M3 0.5h1M0 1.5h4")]


def test_a_panel_is_where_and_as_large_as_it_was_asked_for():
    svg = panel([[1.0, 0.0, 0.0, 0.0]] * 2, 3, 4, 40, "a<b")
    assert 'transform="translate(3 4) scale(10)"' in svg
    assert f'<rect width="4" height="2" fill="none" stroke="{FRAME}" stroke-width="0.1"/>' in svg
    assert 'aria-label="a&lt;b"' in svg
    assert "<title>a&lt;b</title>" in svg
    assert "scale(5)" in panel([[1.0]] * 8, 0, 0, 40, "n")  # the longer side counts
    assert 'viewBox="0 0 30 20" width="30" height="20" class="heat"' in picture("", 30, 20, "x&y")
    assert 'aria-label="x&amp;y"' in picture("", 30, 20, "x&y")
    assert caption("a<b", 1, 2) == f'<text x="1" y="2" fill="{FRAME}">a&lt;b</text>'


# ---- attnzoo show


def test_what_stands_above_and_below_a_picture(capsys):
    assert headline(SHOWN) == "local (a=1, b=2), 4 tokens, head 1 of 3"
    assert headline({**SHOWN, "options": {}}) == "local, 4 tokens, head 1 of 3"
    assert len(notes(SHOWN)) == 1
    assert notes(SHOWN, 2)[1:] == ["each cell is the largest weight of 2 x 2"]
    assert notes({**SHOWN, "cut": {"w": 8, "v": 9}})[1:] == ["cut down to fit: w (default 8), v (default 9)"]
    print_picture({**SHOWN, "backend": "l\x1b[2J"}, 80)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("l\ufffd[2J (a=1")
    assert lines[1].split("  ") == ["read at all", "weights, over each row's largest"]
    assert lines[2:6] == ["┌────┐  ┌────┐", "│█▄  │  │██  │", "│ ▀█▄│  │ ███│", "└────┘  └────┘"]
    assert lines[6].startswith("rows are queries, columns keys")


def test_the_two_panels_of_a_file():
    svg = picture_svg(SHOWN)
    assert "translate(10 26)" in svg
    assert "translate(286 26)" in svg
    assert 'viewBox="0 0 552 292"' in svg
    left, right = re.findall(r"<g transform.*?</g><rect", svg)
    assert "local: read at all" in left
    assert "local: weights, over each row" in right
    assert {opacity for _, opacity, _ in strokes(left)} == {1.0}
    uneven = picture_svg({**SHOWN, "weights": [[1.0, 0.0], [0.25, 0.5]]})
    read, shaded = re.findall(r"<g transform.*?</g><rect", uneven)
    assert [{opacity for _, opacity, _ in strokes(side)} for side in (read, shaded)] == [{1.0}, {0.5, 1.0}]
    assert svg.index(">read at all</text>") < svg.index(">weights, over each row")


def test_the_numbers_of_a_head_in_their_columns():
    assert numbers(HEAD) == ["1.6", "0.44", "-1.0 to 2.0", "25.6", "0.99"]
    empty = dict.fromkeys(("keys", "entropy_nats", "logit_min", "sink_share"))
    assert numbers({**HEAD, **empty}) == ["–", "–", "–", "–", "0.99"]
    assert [title for title, _ in NUMBERS] == ["keys read", "entropy", "logits", "first token", "row sum"]
    console = Console(file=io.StringIO(), width=60)
    print_heads([{"layer": 1, "backend": "b\x1b[2J", "heads": [HEAD]}], console)
    assert "b\ufffd[2J" in console.file.getvalue()
    heads, units, _, cells = (" ".join(text.split()) for text in console.file.getvalue().splitlines() if text.strip())
    assert heads == "keys read entropy first token row sum"
    assert units == "layer backend head exp(entropy) nats logits % mean"
    assert cells == "1 b\ufffd[2J 2 1.6 0.44 -1.0 to 2.0 25.6 0.99"
    assert console.width == 140  # a pipe: nothing is cut


def test_the_page_of_a_model_names_layer_and_head(parse):
    layers = [{"layer": n, "backend": f"b{n}", "heads": [HEAD]} for n in (0, 5)]
    page = heads_html({"title": "t", "n_tokens": 130, "text": None, "layers": layers})
    found = parse(page)
    assert [cells[0] for cells in found.rows if cells[0] != "head"] == ["2", "2"]
    assert 'aria-label="layer 5, head 2"' in page
    assert "Layer 5 b5" in found.text
    assert "130 tokens" in found.text
    assert "largest weight of 3 × 3" in found.text  # 130 tokens in at most 64 cells
    assert "What was read" not in found.text
    assert 'viewBox="0 0 258 258"' in page


# ---- markers and lines


def test_where_the_corners_of_a_marker_are():
    def corners(style):
        path = re.search(r' d="([^"]*)"', marker(style, 50, 50, 10))[1]
        return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)]

    assert 'cx="50.0" cy="60.0" r="4.0"' in marker(0, 50, 60)
    half = 12.5 * math.sqrt(0.5)
    square = [(50 + half, 50 - half), (50 + half, 50 + half), (50 - half, 50 + half), (50 - half, 50 - half)]
    assert sorted(corners(1)) == [pytest.approx(corner, abs=0.06) for corner in sorted(square)]
    assert len(corners(2)) == len(corners(6)) == 3
    assert corners(2)[0] == (50.0, 36.5)  # a triangle's tip is above
    assert corners(6)[0] == (50.0, 63.5)  # and below where it is turned
    assert corners(3) == [(50.0, 36.5), (63.5, 50.0), (50.0, 63.5), (36.5, 50.0)]
    assert corners(4) == [(40.0, 40.0), (60.0, 60.0), (40.0, 60.0), (60.0, 40.0)]
    assert corners(5) == [(37.0, 50.0), (63.0, 50.0), (50.0, 37.0), (50.0, 63.0)]
    assert len(corners(7)) == 6
    assert 'class="mark stroked"' in marker(4, 0, 0)
    assert 'class="mark stroked"' in marker(5, 0, 0)
    assert 'class="mark"' in marker(3, 0, 0)
    assert '<svg class="swatch c1"' in swatch(11)


def test_a_series_draws_its_line_its_points_and_no_more():
    unit = Scale(0.0, 10.0, 0.0, 100.0, False, [])
    lined = Series("a", 12, [(1.0, 2.0), (3.0, 4.0)], ["first"])
    svg = lined.svg(unit, unit)
    assert 'class="series c2"' in svg
    assert 'points="10.0,20.0 30.0,40.0" stroke-dasharray' not in svg  # style 12: a full line
    assert 'points="10.0,20.0 30.0,40.0"' in svg
    assert svg.count("<title>") == 1
    assert "polyline" not in Series("a", 0, [(1.0, 2.0)]).svg(unit, unit)
    assert "polyline" not in Series("a", 0, lined.points, line=False).svg(unit, unit)
    assert 'r="3.2"' in Series("a", 0, [(1.0, 2.0)]).svg(unit, unit)
    assert 'r="5.0"' in Series("a", 0, [(1.0, 2.0)], line=False).svg(unit, unit)
    both = Series("a", 0, [(1.0, 2.0)], x_interval=[(0.0, 3.0)], y_interval=[(-1.0, 5.0)])
    assert (both.values(0), both.values(1)) == ([1.0, 0.0, 3.0], [2.0, -1.0, 5.0])
    assert 'd="M0.0 20.0H30.0"' in both.svg(unit, unit)
    double = Scale(0.0, 10.0, 0.0, 200.0, False, [])
    assert 'd="M10.0 -20.0V100.0"' in both.svg(unit, double)
    assert 'd="M0.0 40.0H30.0"' in both.svg(unit, double)
    assert 'points="10.0,40.0 30.0,80.0"' in lined.svg(unit, double)


# ---- axes


def test_compact_numbers_change_letter_where_they_round_up():
    assert [compact(v) for v in (999.4, 999.6, 999_600, -1500, 0, 2e12)] == ["999", "1k", "1M", "-1.5k", "0", "2T"]


def test_the_margins_of_an_axis():
    scale = Axis("x").scale([0.0, 10.0], 0, 1)
    assert (scale.low, scale.high) == pytest.approx((-0.6, 10.6))
    alone = Axis("x").scale([-4.0], 0, 1)
    assert (alone.low, alone.high) == pytest.approx((-4.2, -3.8))
    zero = Axis("x").scale([0.0], 0, 1)
    assert (zero.low, zero.high) == (-1.0, 1.0)
    log = Axis("x", log=True).scale([1.0, 1e4], 0, 1)
    assert (log.low, log.high) == pytest.approx((10**-0.24, 10**4.24))
    one = Axis("x", log=True).scale([10.0], 0, 1)
    assert (one.low, one.high) == pytest.approx((10 / 1.05, 10.5))
    given = Axis("x", ticks=[-5, 0, 5, 50]).scale([0.0, 10.0], 0, 1)
    assert given.ticks == [0, 5]
    assert Axis("x", limits=(0.0, 1.0), ticks=[0, 1]).scale([0.5], 0, 1).ticks == [0, 1]  # both ends


def test_ticks():
    assert linear_ticks(0.0, 10.0) == [0, 2, 4, 6, 8, 10]
    assert linear_ticks(-0.3, 1.1) == [0.0, 0.5, 1.0]
    assert linear_ticks(3.0, 3.9) == pytest.approx([3.0, 3.2, 3.4, 3.6, 3.8])
    assert linear_ticks(0.0, 35.0) == [0, 10, 20, 30]
    assert log_ticks(0.5, 60.0) == [0.5, 1, 2, 5, 10, 20, 50]
    assert log_ticks(1.0, 1e9) == [1, 100, 1e4, 1e6, 1e8]
    assert log_ticks(1.1, 3.5) == [2]
    assert log_ticks(1.0, 3.0) == [1, 2]


def test_names_beside_points_keep_clear():
    x, y = Scale(0, 1, 60.0, 540.0, False, []), Scale(0, 1, 320.0, 14.0, False, [])
    first = list(_places(100.0, 50.0, 30.0))
    assert len(first) == 40
    assert first[:4] == [(110, 43, 140, 57), (60, 43, 90, 57), (85, 29, 115, 43), (85, 57, 115, 71)]
    assert first[4:8] == [(110, 29, 140, 43), (110, 57, 140, 71), (60, 29, 90, 43), (60, 57, 90, 71)]
    assert first[8] == (117, 43, 147, 57)
    assert _is_free((100, 50, 130, 64), [], x, y)
    assert _is_free(
        (100, 50, 130, 64), [(130, 50, 140, 64), (60, 0, 100, 300), (100, 64, 130, 70), (100, 30, 130, 50)], x, y
    )
    assert not _is_free((100, 50, 130, 64), [(129, 63, 140, 70)], x, y)
    for box in ((61, 50, 90, 64), (540, 50, 559, 64), (100, 13, 130, 27), (100, 306, 130, 319)):
        assert not _is_free(box, [], x, y)
    assert _apart([0.0, 1.0, 90.0], 0.0, 100.0) == [0.0, 14.0, 90.0]


def test_a_leader_runs_to_a_name_that_had_to_move():
    alone = Chart("c", Axis("x"), Axis("y"), [Series("name", 0, [(1.0, 1.0)], line=False)]).svg()
    assert "leader" not in alone
    crowd = [Series(f"a name of some length {n}", n, [(1.0, 1.0)], line=False) for n in range(9)]
    assert "leader" in Chart("c", Axis("x"), Axis("y"), crowd).svg()
    front = Chart("c", Axis("x"), Axis("y"), crowd, front=[(1.0, 1.0)]).svg()
    assert 'class="front"' not in front  # a step needs two corners
    lined = Chart(
        "c", Axis("x"), Axis("y"), [Series("n", 0, [(0, 0.0), (1, 1.0)]), Series("", 0, [(0, 1.0), (1, 2.0)])]
    ).svg()
    assert lined.count('class="name') == 1
    assert lined.count("leader") == 1


# ---- a whole chart

# y: 308 pixels for 0.88 to 3.12, so 1 is at 322 - 308 * 0.12 / 2.24; x: 455 for -0.24 to 4.24
CHART = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 560 372" class="chart" role="img" aria-label="n&lt;">
<path class="grid" d="M60 305.5H515.0"/>
<text class="tick" x="52.0" y="309.5" text-anchor="end">1</text>
<path class="grid" d="M60 30.5H515.0"/>
<text class="tick" x="52.0" y="34.5" text-anchor="end">3</text>
<path class="grid" d="M84.4 322V14"/>
<text class="tick" x="84.4" y="340.0" text-anchor="middle">0</text>
<path class="grid" d="M490.6 322V14"/>
<text class="tick" x="490.6" y="340.0" text-anchor="middle">4</text>
<path class="axis" d="M60 322H515.0"/>
<text class="title" x="287.5" y="362.0" text-anchor="middle">← x</text>
<g transform="translate(15 168.0) rotate(-90)">
<text class="title" x="0.0" y="0.0" text-anchor="middle">y →</text>
</g>
<path class="level" d="M60.0 236.8H515.0"/>
<text class="note" x="511.0" y="249.8" text-anchor="end">chance</text>
<g class="series c0">
<polyline class="line" points="84.4,305.5 490.6,168.0"/>
<circle class="mark" cx="84.4" cy="305.5" r="3.2">
</circle>
<circle class="mark" cx="490.6" cy="168.0" r="3.2">
</circle>
</g>
<g class="series c1">
<polyline class="line" points="84.4,30.5 389.1,154.2" stroke-dasharray="7 3"/>
<path class="mark" d="M87.2 27.7L87.2 33.3L81.5 33.3L81.5 27.7Z">
</path>
<path class="mark" d="M391.9 151.4L391.9 157.1L386.2 157.1L386.2 151.4Z">
</path>
</g>
<path class="leader" d="M394.1 154.2L525.0 154.2"/>
<text class="name c1" x="528.0" y="158.2">two</text>
<path class="leader" d="M495.6 168.0L525.0 168.2"/>
<text class="name c0" x="528.0" y="172.2">one</text>
</svg>
"""


def test_a_chart_to_the_letter():
    chart = Chart(
        "n<",
        Axis("x", better="low", ticks=[0.0, 4.0]),
        Axis("y", better="high", ticks=[1.0, 3.0]),
        [Series("one", 0, [(0.0, 1.0), (4.0, 2.0)]), Series("two", 1, [(0.0, 3.0), (3.0, 2.1)])],
        levels=[(1.5, "chance")],
    )
    assert chart.svg().replace("><", ">\n<").splitlines() == CHART.splitlines()


def test_names_and_front_of_points():
    series = [Series("one", 0, [(1.0, 8.0)], line=False), Series("two", 2, [(3.0, 6.0)], line=False)]
    svg = Chart("d", Axis("x"), Axis("y"), series, front=[(1.0, 8.0), (3.0, 6.0)]).svg()
    assert '<path class="front" d="M85.8 30.5H516.2V305.5"><title>no point is better on both</title></path>' in svg
    assert '<text class="name c0" x="95.8" y="34.5">one</text>' in svg
    assert '<text class="name c2" x="526.2" y="309.5">two</text>' in svg
    assert 'd="M516.2 298.8L522.0 308.9L510.3 308.9Z"' in svg


# ---- plots


def drawn(records):
    return {plot.title: plot for plot in plots(summarise(records))}


def test_every_seed_has_its_line_and_a_row_its_name_once(records):
    svg = drawn(records)["Validation loss over tokens"].svg
    assert len(re.findall(r">sdpa</text>", svg)) == 1
    assert svg.count('<g class="series c1"') == 3
    assert "sdpa, seed 2:" in svg
    assert "nats after 614,400 tokens" in svg
    assert "← validation loss, nats" in svg


def test_the_curve_of_a_task_has_its_chance_and_its_accuracy(records):
    svg = drawn(records)["Accuracy on recall over tokens"].svg
    assert svg.count('class="level"') == 1
    assert ">chance</text>" in svg
    assert "recall accuracy →" in svg
    assert "mqa, seed 1: accuracy 0.97 after 614,400 tokens" in svg


def test_what_takes_no_part_is_hollow_and_what_is_not_positive_is_not_on_a_log_axis(records):
    plot = drawn(records)["Bits/byte against peak memory"]
    rows = summarise(records).rows
    assert plot.svg.count("hollow") == sum(bool(row.unranked) for row in rows) == 2
    for record in records:
        if record["attention"] == "exact":
            record["cost"]["train_peak_memory_bytes"] = 0
    moved = drawn(records)["Bits/byte against peak memory"]
    assert "exact" in plot.svg
    assert "exact" not in moved.svg
    assert "exact (not measured)" in moved.caption


def test_the_scatter_has_its_axes_and_whiskers(records):
    svg = drawn(records)["Bits/byte against train step"].svg
    assert "← train step, ms" in svg
    assert "← bits/byte" in svg
    assert svg.count('class="whisker"') == 2 * 5
    sdpa = re.search(r'<g class="series c1">(.*?)</g>', svg)[1]
    across, along = re.search(r"M([\d.]+) [\d.]+H([\d.]+)", sdpa), re.search(r"M[\d.]+ ([\d.]+)V([\d.]+)", sdpa)
    mark = [
        tuple(map(float, corner))
        for corner in re.findall(r"(?:M|L)([\d.]+) ([\d.]+)", re.search(r'mark" d="([^"]*)', sdpa)[1])
    ]
    x, y = (sum(values) / 4 for values in zip(*mark, strict=True))
    assert float(across[1]) < x < float(across[2])
    assert float(along[1]) > y > float(along[2])
    memory = drawn(records)["Bits/byte against peak memory"].svg
    assert "← peak memory, MiB" in memory
    assert memory.count('class="whisker"') == 7  # of the quality alone
    recall = drawn(records)["Recall accuracy against bits/byte"].svg
    assert "recall accuracy →" in recall
    assert "← bits/byte" in recall


def test_equal_factors_are_equal_steps_over_length(records):
    [record] = [r for r in records if r["attention"] == "exact" and r["seed"] == 0]
    record["cost"]["length_sweep"] = [
        {"n_tokens": n, "train_step_ms": ms, "peak_memory_bytes": ms * 2**20}
        for n, ms in ((256, 1), (512, 10), (1024, 100))
    ]
    found = drawn([record])
    for title in ("Train step over length", "Peak memory over length"):
        marks = re.findall(r'<circle[^>]* cx="([\d.]+)" cy="([\d.]+)"', found[title].svg)
        xs, ys = ([float(value) for value in axis] for axis in zip(*marks, strict=True))
        assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
        assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.2)
        assert ys[0] > ys[2]


def test_cost_over_length_is_in_its_unit_and_needs_two_lengths(records):
    for record in records:
        if record["attention"] == "sdpa":
            record["cost"]["length_sweep"] = [
                {"n_tokens": n, "train_step_ms": n / 10, "peak_memory_bytes": n * 2**20} for n in (512, 1024)
            ]
    found = drawn([r for r in records if r["attention"] == "sdpa"])
    assert "sdpa: 51.2 ms at 512 tokens" in found["Train step over length"].svg
    assert "sdpa: 512 MiB at 512 tokens" in found["Peak memory over length"].svg
    assert "← train step, ms" in found["Train step over length"].svg
    assert "← peak memory, MiB" in found["Peak memory over length"].svg
    for record in records:
        if record.get("cost"):
            record["cost"]["length_sweep"] = record["cost"]["length_sweep"][:1]
    assert "Train step over length" not in drawn([r for r in records if r["attention"] == "sdpa"])
