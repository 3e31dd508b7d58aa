"""Plots are well-formed, and put things where the data say."""

import itertools
import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnzoo.report.marks import Series
from attnzoo.report.plots import plots
from attnzoo.report.rows import summarise
from attnzoo.report.scales import Axis, compact, linear_ticks, log_ticks, tokens
from attnzoo.report.svg import HEIGHT, WIDTH, Chart

SVG = "{http://www.w3.org/2000/svg}"


def test_every_plot_is_there_and_well_formed(records):
    found = plots(summarise(records))
    assert [plot.title for plot in found] == [
        "Validation loss over tokens", "Accuracy on recall over tokens", "Recall accuracy against bits/byte",
        "Bits/byte against train step", "Bits/byte against peak memory", "Train step over length",
        "Peak memory over length",
    ]  # fmt: skip
    for plot in found:
        root = ElementTree.fromstring(plot.svg)
        assert all("NaN" not in value and "nan" not in value for e in root.iter() for value in e.attrib.values())
        assert "xformers (refused)" in plot.caption
    speed = ElementTree.fromstring(found[3].svg)
    names = {text.text for text in speed.iter(f"{SVG}text") if text.get("class", "").startswith("name")}
    assert names == {"exact", "sdpa", "gqa", "mqa", "sliding_window"}  # those of linear and block_sparse are withheld


def test_no_records_no_plots(records):
    assert plots(summarise([])) == []
    assert plots(summarise([r for r in records if r["status"] == "refused"])) == []


def test_doubling_is_the_same_step_on_a_log_axis():
    scale = Axis("x", log=True).scale([1.0, 8.0], 0.0, 300.0)
    steps = [scale(2.0 ** (k + 1)) - scale(2.0**k) for k in range(3)]
    assert steps == pytest.approx([steps[0]] * 3)


numbers = st.floats(1e-6, 1e12)


@given(points=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12), log=st.booleans(), line=st.booleans())
def test_any_data_stay_inside(points, log, line):
    series = [Series(f"s{k}<&\x01", k, [point], ["]]>"], line=line) for k, point in enumerate(points)]
    text = Chart("any", Axis("x", log=log), Axis("y", log=log), series).svg()
    root = ElementTree.fromstring(text)
    names = [e for e in root.iter(f"{SVG}text") if e.get("class", "").startswith("name")]
    assert len(names) == len(points)
    for x, y in re.findall(r'c[xy]="(-?[\d.]+)" c[xy]="(-?[\d.]+)"', text):
        assert 0 <= float(x) <= WIDTH
        assert 0 <= float(y) <= HEIGHT


@given(low=st.floats(-1e9, 1e9), span=st.floats(1e-3, 1e9))
def test_linear_ticks_are_few_and_inside(low, span):
    ticks = linear_ticks(low, low + span)
    assert 2 <= len(ticks) <= 12
    slack = 1e-6 * (abs(low) + span)
    assert low - slack <= ticks[0]
    assert ticks[-1] <= low + span + slack


@given(low=st.floats(1e-9, 1e9), factor=st.floats(1.01, 1e9))
def test_log_ticks_are_few_and_inside(low, factor):
    ticks = log_ticks(low, low * factor)
    assert 1 <= len(ticks) <= 12
    assert all(low * (1 - 1e-6) <= tick <= low * factor * (1 + 1e-6) for tick in ticks)


def test_names_at_line_ends_do_not_overlap():
    series = [Series(f"line {k}", k, [(0, 1.0), (1, 1.0 + k * 1e-4)]) for k in range(9)]
    root = ElementTree.fromstring(Chart("ends", Axis("x"), Axis("y"), series).svg())
    ys = sorted(float(e.get("y")) for e in root.iter(f"{SVG}text") if e.get("class", "").startswith("name"))
    assert len(ys) == 9
    assert min(b - a for a, b in itertools.pairwise(ys)) >= 13.9  # a line of 14 px, rounded to 0.1


def test_labels():
    assert [compact(v) for v in (0.05, 950, 1200, 3e6, 2.5e9)] == ["0.05", "950", "1.2k", "3M", "2.5G"]
    assert [tokens(v) for v in (256, 1024, 8192, 1000)] == ["256", "1k", "8k", "1k"]
    assert math.isclose(Axis("x").scale([5.0], 0, 100)(5.0), 50)  # one value stands in the middle
