"""Each planted bug turns the check red that should catch it; what it is planted in passes the whole suite."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from bugs_decoding import Windowed  # noqa: E402
from bugs_recurrent import Gated, SoundLinear  # noqa: E402
from sound import Sound, planted  # noqa: E402

from attnzoo import check  # noqa: E402
from attnzoo.checks.pytest import conformance  # noqa: E402

DOCS = HERE.parents[1] / "docs" / "planted_bugs.md"

test_sound_softmax = conformance(Sound)
test_sound_gates = conformance(Gated)


@pytest.mark.parametrize("correct", [SoundLinear, Windowed], ids=lambda c: c.__name__)
def test_sound(correct):
    report = check(correct, quick=True)
    assert report.passed, str(report)


@pytest.mark.parametrize("bug", planted(), ids=lambda c: c.__name__)
def test_is_caught_by_the_check_that_should_catch_it(bug):
    report = check(bug, only=[bug.caught_by], shrink=False)
    assert report.failed_checks() == [bug.caught_by], f"{bug.__name__} ({bug.__doc__}) went unseen: {report}"
    failure = report.failures[0]
    assert failure.case, "a failure names its input"
    assert failure.expected, "a failure says what was expected"
    assert failure.actual, "a failure says what came instead"


def test_there_are_enough_of_them():
    names = [bug.__name__ for bug in planted()]
    assert len(names) == len(set(names)) >= 40


def test_table_lists_every_bug():
    """Whether each cell still holds is for `scripts/planted_table.py --check`; here no row may be missing, nor stale."""
    page = DOCS.read_text(encoding="utf-8").partition("## Language models")[0]
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    listed = {line.split("`")[1]: line for line in rows}
    assert set(listed) == {bug.__name__ for bug in planted()}, "run scripts/planted_table.py"
    for bug in planted():
        assert f"**{bug.caught_by}**" in listed[bug.__name__], f"{bug.__name__}: run scripts/planted_table.py"
        assert bug.__doc__ in listed[bug.__name__], f"{bug.__name__}: run scripts/planted_table.py"
