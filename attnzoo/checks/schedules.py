"""What `check schedule:NAME` holds a schedule to: a factor for every step, finite and within bounds, of the step alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attnzoo import components
from attnzoo.arguments import demand
from attnzoo.checks.compare import Failed
from attnzoo.schedules.base import Schedule

LENGTHS = (1, 2, 7, 300)
"""Steps of a run: shorter and longer than a warm-up."""


@dataclass
class Subject:
    make: Callable[[], Schedule]


def subject(cls: type[Schedule], given: Mapping[str, Any], device: str) -> Subject:
    options, faults = components.read_class(cls.Options, "schedule", cls.name, given, "")
    demand(f"the schedule {cls.__name__} cannot be checked", faults)
    assert options is not None
    return Subject(lambda: cls(cls.Options(**vars(options))))


def factors_lie_within_bounds(s: Subject) -> str:
    """At every step the factor is a number from 0 to 1, and not 0 at all of them."""
    for length in LENGTHS:
        found = [s.make().factor(step, length) for step in range(length)]
        for step, factor in enumerate(found):
            if not isinstance(factor, (int, float)) or not math.isfinite(factor) or not 0 <= factor <= 1:
                raise Failed("a number from 0 to 1", repr(factor), f"step {step} of {length}")
        if not any(found):
            raise Failed("a step that changes something", "0 at every step", f"{length} steps")
    return f"runs of {', '.join(map(str, LENGTHS))} steps"


def resumes(s: Subject) -> str:
    """The factor of a step does not depend on which steps were asked for before: a run that goes on starts in the middle."""
    length = LENGTHS[-1]
    one = s.make()
    whole = [one.factor(step, length) for step in range(length)]
    for first in (length // 3, length // 2, length - 1):
        again = s.make()
        for step in range(first, length):
            if (found := again.factor(step, length)) != whole[step]:
                raise Failed(
                    f"{whole[step]}", f"{found}", f"step {step} of {length}", f"asked for from step {first} on"
                )
    return f"{length} steps, from the middle on"


PROPERTIES = (factors_lie_within_bounds, resumes)
