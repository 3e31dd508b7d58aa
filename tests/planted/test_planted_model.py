"""Each fault planted into a language model turns the property of `check_model` red that should see it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from bugs_model import BUGS, report  # noqa: E402

DOCS = HERE.parents[1] / "docs" / "planted_bugs.md"


def test_the_model_without_them_passes():
    right = report()
    assert right.passed, right


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_is_caught_by_the_property_that_should_see_it(bug, monkeypatch):
    bug.plant(monkeypatch)
    assert bug.caught_by in report().failed_checks(), f"{bug.name} ({bug.about}) went unseen"


def test_table_lists_every_bug():
    page = DOCS.read_text(encoding="utf-8").partition("## Language models")[2]
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert set(rows) == {bug.name for bug in BUGS}, "run scripts/planted_table.py --models"
    for bug in BUGS:
        assert f"| {bug.about} | **{bug.caught_by}** |" in rows[bug.name], "run scripts/planted_table.py --models"
