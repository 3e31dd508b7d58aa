"""Trying a property on a case: passed, refused as declared, skipped with a reason, or failed on the smallest input found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from attnzoo.checks.cases import Case
from attnzoo.checks.compare import Failed, Skip
from attnzoo.checks.report import FAILED, PASSED, REFUSED, SKIPPED, Result
from attnzoo.checks.subject import Subject
from attnzoo.errors import RequestError

Property = Callable[[Subject, Case], None]
"""Raises `Failed` where it does not hold, `Skip` where it cannot be tried."""
SHRINK_TRIES = 60


def each(subject: Subject, check: str, cases: Iterable[Case], prop: Property, **how) -> Iterator[Result]:
    """`verify` over many cases, each tried once."""
    for case in dict.fromkeys(cases):
        yield verify(subject, check, case, prop, **how)


def verify(
    subject: Subject, check: str, case: Case, prop: Property, *, training: bool = False, shrink: bool = True
) -> Result:
    """The verdict on one case. ``training``: the property needs a backward pass. ``shrink``: whether smaller cases make sense."""
    if training and not subject.trains:
        return Result(check, str(case), SKIPPED, detail=f"{subject.name} declares no backward on {subject.device}")
    why = subject.reasons(case, training)
    if why:
        return _expect_refusal(subject, check, case, why, training)
    failure = _attempt(subject, case, prop)
    if isinstance(failure, Skip):
        return Result(check, str(case), failure.status, detail=str(failure))
    if failure is None:
        return Result(check, str(case), PASSED)
    if shrink and subject.shrink:
        case, failure = _smallest(subject, case, prop, failure, training)
    return Result(check, str(case), FAILED, failure.expected, failure.actual, failure.where, failure.detail)


def _attempt(subject: Subject, case: Case, prop: Property) -> Failed | Skip | None:
    try:
        prop(subject, case)
    except (Failed, Skip) as found:
        return found
    except Exception as error:  # whatever the attention under check raises is a finding, and is reported whole
        return Failed("a result", f"{type(error).__name__}: {error}", detail=_location(error))
    return None


def _smallest(subject: Subject, case: Case, prop: Property, failure: Failed, training: bool) -> tuple[Case, Failed]:
    """Greedy descent over `Case.smaller` while the property still fails."""
    tries, moved = SHRINK_TRIES, True
    while moved:
        moved = False
        for candidate in case.smaller():
            if tries == 0:
                return case, failure
            if subject.reasons(candidate, training):
                continue
            tries -= 1
            found = _attempt(subject, candidate, prop)
            if isinstance(found, Failed):
                case, failure, moved = candidate, found, True
                break
    return case, failure


def _expect_refusal(subject: Subject, check: str, case: Case, why: list[str], training: bool) -> Result:
    """What is not declared must be refused when asked for, not only on paper; ``training``: while gradients are recorded."""
    expected = f"Refused: {'; '.join(why)}"
    try:
        module, inputs = subject.build(case), subject.inputs(case)
        with torch.set_grad_enabled(training):
            module(*(inputs.leaves() if training else inputs))
    except RequestError:
        return Result(check, str(case), REFUSED, detail="; ".join(why))
    except Exception as error:  # as above: not a refusal
        return Result(check, str(case), FAILED, expected, f"{type(error).__name__}: {error}")
    return Result(check, str(case), FAILED, expected, "it computed something")


def _location(error: Exception) -> str:
    """File, line and function of the innermost frame."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    code = trace.tb_frame.f_code
    return f"raised in {code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno} {code.co_name}"
