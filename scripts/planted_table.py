"""Writes docs/planted_bugs.md: every planted bug, by every check that turns red on it. Takes a quarter of an hour of one core.

python scripts/planted_table.py [--models] [--check]     (--check only compares, and exits 1 when the file is stale; --models
measures the language models alone, half a minute, and keeps the rest of the page)
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "planted"))
PAGE = ROOT / "docs" / "planted_bugs.md"
SLOW = ("compilation", "growth", "mask_readout_far", "many_rows", "many_rows_dropped")
"""Checks of seconds each: tried only on the bugs that they are meant for."""

HEAD = """# Planted bugs

Written by `scripts/planted_table.py`; do not edit. {bugs} wrong attentions live in `tests/planted/`, each with one
fault. The check in bold is the one that is meant to catch it, and `tests/planted/test_planted.py` holds it to that;
of the {checks} checks all others that turn red too are listed after it. {slow} take seconds
each: they are tried only on the bugs meant for them, and their numbers in the second table say no more than that.

| planted bug | what is wrong | caught by | also red |
|---|---|---|---|
"""


def row(name: str) -> str:
    """One line of the table: every check is run, each up to its first failure."""
    from sound import planted

    from attnzoo.checks import Subject, all_checks
    from attnzoo.checks.suite import run_check

    (bug,) = [bug for bug in planted() if bug.__name__ == name]
    red = []
    for one in all_checks():
        if one.name in SLOW and one.name != bug.caught_by:
            continue
        if any(r.status == "failed" for r in run_check(Subject.of(bug, shrink=False), one)):
            red.append(one.name)
    if bug.caught_by not in red:
        raise RuntimeError(f"{bug.__name__} is not caught by {bug.caught_by}, only by {red}")
    others = ", ".join(name for name in red if name != bug.caught_by) or "–"
    return f"| `{bug.__name__}` | {bug.__doc__} | **{bug.caught_by}** | {others} |"


def counts(rows: list[str], names: list[str]) -> str:
    """How many bugs each check catches: a check that never turns red proves nothing."""
    lines = ["", "| check | bugs it turns red on |", "|---|---|"]
    for name in names:
        lines.append(
            f"| {name} | {sum(name in line.split('|', 3)[3].replace('*', ' ').replace(',', ' ').split() for line in rows)} |"
        )
    return "\n".join(lines) + "\n"


MODELS = """
## Language models

Faults planted into the code of a right model (`tests/planted/bugs_model.py`), by the properties of `attnzoo check --model`
that turn red.

| planted bug | what is wrong | caught by | also red |
|---|---|---|---|
"""


def models() -> str:
    """The table of faults in models: every property is tried on each."""
    import pytest
    from bugs_model import BUGS, report

    lines = []
    for bug in BUGS:
        with pytest.MonkeyPatch.context() as patch:
            bug.plant(patch)
            red = report().failed_checks()
        if bug.caught_by not in red:
            raise RuntimeError(f"{bug.name} is not caught by {bug.caught_by}, only by {red}")
        others = ", ".join(name for name in red if name != bug.caught_by) or "–"
        lines.append(f"| `{bug.name}` | {bug.about} | **{bug.caught_by}** | {others} |")
    return MODELS + "\n".join(lines) + "\n"


def attentions() -> str:
    """The tables of faults in attentions."""
    import torch
    from sound import planted

    from attnzoo.checks import all_checks

    names, checks = [bug.__name__ for bug in planted()], [c.name for c in all_checks()]
    with ProcessPoolExecutor(torch.get_num_threads(), get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        rows = list(pool.map(row, names))
    head = HEAD.format(bugs=len(names), checks=len(checks), slow=", ".join(SLOW))
    return head + "\n".join(rows) + "\n" + counts(rows, checks)


def main() -> int:
    kept = PAGE.read_text(encoding="utf-8").partition(MODELS)[0] if "--models" in sys.argv else attentions()
    page = kept + models()
    if "--check" in sys.argv:
        stale = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page
        print("stale: run scripts/planted_table.py" if stale else "up to date")
        return int(stale)
    from attnzoo.files import write_text_atomic

    write_text_atomic(PAGE, page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
