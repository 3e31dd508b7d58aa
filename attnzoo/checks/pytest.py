"""The suite inside a project's own pytest run, one test a check:

>>> from attnzoo.checks.pytest import conformance  # doctest: +SKIP
>>> test_mine = conformance("mine")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from attnzoo.checks.report import FAILED, PASSED
from attnzoo.checks.subject import Subject
from attnzoo.checks.suite import Check, all_checks, run_check


def conformance(what, *, quick: bool = False, device: str = "cpu", **options) -> Callable[[Check], None]:
    """A test function with one case a check, to be bound to a name that starts with ``test_``.

    Args:
        what: a registered name, an `Attention`, its class, or a function that builds one.
        quick: the short form of the suite.
        device, options: as in `attnzoo.check`.
    """

    @pytest.mark.parametrize("one", all_checks(quick), ids=lambda c: c.name)
    def test(one: Check) -> None:
        hold(what, one, quick=quick, device=device, **options)

    return test


def hold(what, one: Check, *, quick: bool = False, device: str = "cpu", **options) -> None:
    """Fail or skip the running test as this check turns out; a check that is refused in every case is a skip that says so."""
    results = run_check(Subject.of(what, device=device, **options), one, quick)
    failed = [r for r in results if r.status == FAILED]
    if failed:
        pytest.fail(str(failed[0]), pytrace=False)
    if not any(r.status == PASSED for r in results):
        pytest.skip("; ".join(sorted({f"{r.status}: {r.detail}" for r in results})) or "no case")
