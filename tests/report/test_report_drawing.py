"""Where a plot puts things, which corners its front has, and what its captions say."""

import re

import pytest

from attnzoo.report.marks import LONGEST, Series, dash, marker, swatch
from attnzoo.report.matrix import matrix
from attnzoo.report.plots import _front, plots
from attnzoo.report.rows import Row, summarise
from attnzoo.report.scales import Axis, log_ticks
from attnzoo.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Chart, _apart

POINTS = [(1.0, 5.0), (2.0, 3.0), (3.0, 4.0), (4.0, 1.0), (4.0, 2.0), (1.0, 6.0)]


@pytest.mark.parametrize(
    ("low_x", "low_y", "front"),
    [
        (True, True, [(1.0, 5.0), (2.0, 3.0), (4.0, 1.0)]),
        (True, False, [(1.0, 6.0)]),
        (False, True, [(4.0, 1.0)]),
        (False, False, [(4.0, 2.0), (3.0, 4.0), (1.0, 6.0)]),
    ],
)
def test_the_front_is_what_no_other_beats_on_both(low_x, low_y, front):
    assert _front(POINTS, low_x, low_y) == front


def circles(svg):
    return [(float(x), float(y)) for x, y in re.findall(r'<circle[^>]* cx="([\d.]+)" cy="([\d.]+)"', svg)]


def test_points_are_where_the_axes_say():
    """Two points at the ends, 6 % of the span from the frame; y upwards."""
    series = [Series("", 0, [(0.0, 10.0), (100.0, 20.0)], line=False)]
    left, right, low, high = LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM, TOP
    x = [left + (right - left) * part / 112 for part in (6, 106)]
    y = [low + (high - low) * part / 11.2 for part in (0.6, 10.6)]
    found = circles(Chart("c", Axis("x"), Axis("y"), series).svg())
    assert [px for px, _ in found] == pytest.approx(x, abs=0.06)
    assert [py for _, py in found] == pytest.approx(y, abs=0.06)


def test_whiskers_run_between_the_ends_of_the_intervals():
    series = [Series("", 0, [(5.0, 5.0)], x_interval=[(0.0, 10.0)], y_interval=[(2.0, 8.0)], line=False)]
    svg = Chart("c", Axis("x"), Axis("y"), series).svg()
    [(cx, cy)] = circles(svg)
    across = re.search(r'whisker" d="M([\d.]+) ([\d.]+)H([\d.]+)"', svg)
    along = re.search(r'whisker" d="M([\d.]+) ([\d.]+)V([\d.]+)"', svg)
    assert float(across[1]) < cx < float(across[3])
    assert float(across[2]) == pytest.approx(cy, abs=0.11)
    assert float(along[1]) == pytest.approx(cx, abs=0.11)
    assert float(along[2]) > cy > float(along[3])
    assert float(across[3]) - float(across[1]) == pytest.approx((WIDTH - RIGHT - LEFT) / 1.12, abs=0.2)


def test_axes_point_to_their_good_end_and_name_their_ticks():
    series = [Series("", 0, [(0.0, 0.0), (10.0, 4.0)])]
    svg = Chart(
        "c",
        Axis("cost", better="low"),
        Axis("gain", better="high"),
        series,
        levels=[(2.0, "chance")],
        front=[(0, 0), (10, 4)],
    ).svg()
    words = re.findall(r">([^<>]+)</text>", svg)
    assert {"← cost", "gain →", "chance"} <= set(words)
    ticks = [word for word in words if word.replace(".", "").isdigit()]
    assert ticks == ["0", "1", "2", "3", "4", "0", "5", "10"]
    assert 'class="level"' in svg
    assert 'class="front"' in svg


def test_a_chart_grows_with_the_names_it_has_to_hold():
    for count in (3, 40):
        series = [Series(f"row {n}", n, [(0.0, 1.0), (1.0, 1.0 + n * 1e-3)]) for n in range(count)]
        svg = Chart("c", Axis("x"), Axis("y"), series).svg()
        height = float(re.search(r'viewBox="0 0 560 (\d+)"', svg)[1])
        assert height == max(HEIGHT, TOP + BOTTOM + 14 * count)
        names = [float(y) for y in re.findall(r'class="name[^>]* y="([-\d.]+)"', svg)]
        assert len(names) == count
        assert min(names) >= TOP
        assert max(names) <= height - BOTTOM + 5


def test_data_beyond_the_limits_of_an_axis_widen_it():
    scale = Axis("acc", limits=(0.0, 1.0)).scale([-0.5, 0.5, 1.5], 100.0, 0.0)
    assert (scale.low, scale.high) == (-0.5, 1.5)
    assert (scale(-0.5), scale(1.5)) == (100.0, 0.0)
    inside = Axis("acc", limits=(0.0, 1.0)).scale([0.5], 0.0, 100.0)
    assert (inside.low, inside.high) == (0.0, 1.0)


def test_a_long_name_keeps_its_end():
    series = Series(f"{'n' * 60} (LEAKS)", 0, [(0.0, 0.0)])
    assert len(series.name) == LONGEST
    assert series.name.endswith("(LEAKS)")
    assert "…" in series.name
    assert Series("n" * LONGEST, 0, []).name == "n" * LONGEST


def test_names_are_pushed_apart_within_their_bounds():
    assert _apart([50.0, 50.0, 50.0], 0.0, 100.0) == [50.0, 64.0, 78.0]
    assert _apart([95.0, 96.0], 0.0, 100.0) == [86.0, 100.0]
    assert _apart([-5.0], 0.0, 100.0) == [0.0]


def test_marks_differ_where_colours_repeat():
    shapes = [re.sub(r"c\d", "", swatch(style)) for style in range(8)]
    assert len(set(shapes)) == 8
    assert dash(0) == ""
    assert dash(1) == ' stroke-dasharray="7 3"'
    assert dash(5) == dash(1)
    assert 'class="mark hollow"' in marker(0, 1, 1, hollow=True)
    assert "<title>a &lt; b</title>" in marker(1, 1, 1, note="a < b")


def test_log_ticks_are_decades_or_parts_of_them():
    assert log_ticks(1.0, 1e4) == [1, 10, 100, 1000, 10_000]
    assert log_ticks(1.0, 20.0) == [1, 2, 5, 10, 20]
    assert log_ticks(10.0, 20.0) == [10, 12, 14, 16, 18, 20]


def test_what_a_plot_leaves_out_is_said(records):
    found = {plot.title: plot for plot in plots(summarise(records))}
    speed = found["Bits/byte against train step"]
    assert (
        "block_sparse (speed withheld), linear (speed withheld), xformers (refused), flex (refused)." in speed.caption
    )
    assert (
        "Dotted: the rows whose points no other beats on both axes; where whiskers overlap, that is not decided."
        in speed.caption
    )
    assert (
        "sliding_window: train step 95.3 [92.5, 97.1]" in speed.svg or "sliding_window: train step 95.3 [" in speed.svg
    )
    assert "exact, seed 0: 1.7" in found["Validation loss over tokens"].svg
    assert "after 614,400 tokens" in found["Validation loss over tokens"].svg
    assert "block_sparse" not in found["Train step over length"].svg
    assert "412" not in found["Peak memory over length"].caption
    assert ">256</text>" in found["Peak memory over length"].svg
    assert ">8k</text>" in found["Train step over length"].svg
    assert "MiB at 1,024 tokens" in found["Peak memory over length"].svg
    assert "ms at 1,024 tokens" in found["Train step over length"].svg


def test_a_front_is_drawn_through_comparable_and_honest_rows_alone(records):
    title = "Bits/byte against train step"
    for record in records:
        if record["attention"] == "block_sparse":
            record["quality"]["val_bits_per_byte"] = 0.1
    assert 'class="front"' in next(plot.svg for plot in plots(summarise(records)) if plot.title == title)
    for record in records:
        if record["attention"] == "exact":
            record["environment"]["device"] = "cuda"
            record["correct"]["device"] = "cuda"
    assert 'class="front"' not in next(plot.svg for plot in plots(summarise(records)) if plot.title == title)


def test_marks_of_a_matrix():
    def test(name, passed, **more):
        return {"name": name, "passed": passed, **more}

    first = [
        test("suffix", False, first_leaking_position=9, max_change=0.5, detail="saw it"),
        test("gradient", True, max_change=0.0),
    ]
    second = [
        test("suffix", False, first_leaking_position=7, max_change=0.25),
        test("gradient", True),
        test("canary", None),
    ]
    row = Row("a", [{"status": "ok", "leak": {"tests": tests}} for tests in (first, second)], "ok")
    found = matrix([row], "leak")
    assert found.names == ["suffix", "gradient", "canary"]
    [(_, marks)] = found.lines
    assert [(mark.verdict, mark.text, mark.note) for mark in marks] == [
        ("fail", "fail at 7", "largest change 0.5; saw it"),
        ("pass", "pass", "largest change 0"),
        ("skip", "skipped", ""),
    ]
    assert [(label, name) for label, name, _ in found.failures] == [("a", "suffix")]
    cases = [test("scale", False), test("scale", True), test("scale", True, skipped=True)]
    both = [Row("a", [{"status": "ok", "correct": {"tests": cases}}], "ok"), Row("b", [{"status": "ok"}], "ok")]
    assert [[mark.text for mark in marks] for _, marks in matrix(both, "correct").lines] == [["fail 1 of 2"], ["–"]]


# ---- what a plot hands to its chart


def row(name, style_of_loss, step, recall, peak, **more):
    timing = {"median": step, "low": step - 1, "high": step + 2, "ratio": None}
    return {
        "status": "ok", "attention": name, "seed": 0, "options": {},
        "quality": {
            "val_bits_per_byte": style_of_loss, "curve": [[100, 3.0], [200, 2.5]], "task_accuracy": {"recall": recall},
            "task_chance": {"recall": 0.25}, "task_curve": {"recall": [[100, recall / 2], [200, recall]]},
        },
        "cost": {
            "train_step_ms": timing, "train_peak_memory_bytes": peak * 2**20, "timing_id": "one",
            "length_sweep": [{"n_tokens": n, "train_step_ms": n / 8, "peak_memory_bytes": n * 2**20} for n in (512, 256)],
        },
        "leak": {"passed": True}, "correct": {"passed": True},
    } | more  # fmt: skip


@pytest.fixture
def charts(monkeypatch):
    """The charts of these rows by title, drawn as nothing."""
    from attnzoo.report import plots as module

    def of(*rows):
        made = {}

        class Kept(Chart):
            def svg(self):
                made[self.name] = self
                return ""

        monkeypatch.setattr(module, "Chart", Kept)
        found = plots(summarise(rows))
        return made, {plot.title: plot.caption for plot in found}

    return of


def test_every_plot_has_the_numbers_of_its_rows_on_their_axes(charts):
    leaks = row("c", 1.0, 50.0, 0.9, 1, leak={"passed": False, "tests": []}, correct=None)
    made, captions = charts(row("a", 2.0, 10.0, 0.5, 4), row("b", 3.0, 20.0, 0.75, 2), leaks)
    assert list(captions) == [
        "Validation loss over tokens", "Accuracy on recall over tokens", "Recall accuracy against bits/byte",
        "Bits/byte against train step", "Bits/byte against peak memory", "Train step over length", "Peak memory over length",
    ]  # fmt: skip
    loss, accuracy, recall, step, memory, long, large = made.values()
    axes = [(c.x.title, c.x.log, c.x.better, c.y.title, c.y.log, c.y.better) for c in made.values()]
    assert axes == [
        ("tokens seen", False, None, "validation loss, nats", False, "low"),
        ("tokens seen", False, None, "recall accuracy", False, "high"),
        ("bits/byte", False, "low", "recall accuracy", False, "high"),
        ("train step, ms", True, "low", "bits/byte", False, "low"),
        ("peak memory, MiB", True, "low", "bits/byte", False, "low"),
        ("sequence length, tokens", True, None, "train step, ms", True, "low"),
        ("sequence length, tokens", True, None, "peak memory, MiB", True, "low"),
    ]
    assert [c.y.limits for c in (loss, accuracy, recall)] == [None, (-0.08, 1.04), (-0.08, 1.04)]
    assert [(s.label, s.style, s.points, s.hollow) for s in loss.series] == [
        (name, style, [(100.0, 3.0), (200.0, 2.5)], style == 2) for style, name in enumerate(("a", "b", "c (LEAKS)"))
    ]
    assert loss.series[0].notes == ["a, seed 0: 3.000 nats after 100 tokens", "a, seed 0: 2.500 nats after 200 tokens"]
    assert [s.points for s in accuracy.series] == [[(100.0, r / 2), (200.0, r)] for r in (0.5, 0.75, 0.9)]
    assert list(accuracy.levels) == [(0.25, "chance")]
    assert [(s.label, s.points, s.line, s.hollow) for s in recall.series] == [
        ("a", [(2.0, 0.5)], False, False), ("b", [(3.0, 0.75)], False, False), ("c (LEAKS)", [(1.0, 0.9)], False, True),
    ]  # fmt: skip
    assert recall.front == [(2.0, 0.5), (3.0, 0.75)]  # what leaks is better on both, and counts for nothing
    assert captions["Recall accuracy against bits/byte"].startswith("Dotted:")
    assert step.front == [(10.0, 2.0)]
    assert not captions["Bits/byte against train step"].startswith("Dotted:")
    assert memory.front == [(2.0, 3.0), (4.0, 2.0)]
    assert [(s.points, s.x_interval, s.y_interval) for s in step.series] == [
        ([(10.0, 2.0)], [(9.0, 12.0)], [None]), ([(20.0, 3.0)], [(19.0, 22.0)], [None]),
    ]  # fmt: skip
    assert step.series[0].notes == ["a: train step 10.0 [9.0, 12.0] ms, bits/byte 2.000"]
    assert [s.points for s in memory.series] == [[(4.0, 2.0)], [(2.0, 3.0)], [(1.0, 1.0)]]
    assert [(s.label, s.points, s.hollow) for s in long.series] == [
        (name, [(512, 64.0), (256, 32.0)], False) for name in "ab"
    ]
    assert [(s.label, s.points, s.hollow) for s in large.series] == [
        (name, [(512, 512.0), (256, 256.0)], name != "a" and name != "b") for name in ("a", "b", "c (LEAKS)")
    ]
    assert [list(c.x.ticks) for c in (long, large)] == [[256, 512]] * 2
    assert {c.x.text(2048.0) for c in (long, large)} == {"2k"}
    assert captions["Train step over length"].endswith("Not shown: c (speed withheld).")
    assert "Not shown" not in captions["Peak memory over length"]


def test_what_is_not_positive_is_left_out_of_a_log_axis_alone(charts):
    low = row("a", 2.0, 10.0, 0.0, 4)
    low["cost"]["train_step_ms"]["low"] = 0.0
    made, captions = charts(low, row("b", 3.0, 20.0, 0.75, 2))
    assert [s.label for s in made["recall against bits/byte"].series] == ["a", "b"]
    assert [s.label for s in made["bits/byte against train step"].series] == ["b"]
    assert captions["Bits/byte against train step"].endswith("Not shown: a (not measured).")
