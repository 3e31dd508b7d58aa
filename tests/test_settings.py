from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from attnzoo.settings import plain, read


@dataclass
class Inner:
    width: int = 1


@dataclass
class Outer:
    count: int = 3
    rate: float = 0.5
    name: str = "a"
    on: bool = False
    limit: int | None = None
    pair: tuple[float, float] = (0.0, 1.0)
    words: list[str] = field(default_factory=list)
    table: dict[str, dict] = field(default_factory=dict)
    anything: Any = None
    inner: Inner = field(default_factory=Inner)


def test_plain_values_and_back_are_equal() -> None:
    outer = Outer(limit=4, pair=(0.25, 0.75), words=["b"], table={"x": {"y": 1}}, inner=Inner(7))
    arguments, faults = read(Outer, plain(outer))
    assert not faults
    assert Outer(**arguments) == outer
    assert plain(outer)["pair"] == [0.25, 0.75]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"rate": 2}, 2.0),
        ({"rate": "1e-3"}, 0.001),
        ({"name": 12}, "12"),
        ({"limit": None}, None),
        ({"pair": [1, 2]}, (1.0, 2.0)),
    ],
)
def test_harmless_differences_of_type_are_converted(values: dict, expected: object) -> None:
    arguments, faults = read(Outer, values)
    (got,) = arguments.values()
    assert (faults, got, type(got)) == ([], expected, type(expected))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"count": "abc"}, "count='abc': must be a whole number"),
        ({"count": True}, "count=True: must be a whole number"),
        ({"count": 1.5}, "count=1.5: must be a whole number"),
        ({"count": None}, "count=None: must be a whole number"),
        ({"rate": "fast"}, "rate='fast': must be a number"),
        ({"rate": False}, "rate=False: must be a number"),
        ({"on": 1}, "on=1: must be true or false"),
        ({"on": "yes"}, "on='yes': must be true or false"),
        ({"name": True}, "name=True: must be a text"),
        ({"pair": [1]}, "pair=[1]: must have 2 values"),
        ({"words": "one"}, "words='one': must be a list, such as words=[one]"),
        ({"table": 3}, "table=3: must be a group of keys"),
        ({"inner": 3}, "inner=3: must be a group of keys"),
        ({"inner": {"width": "x"}}, "inner.width='x': must be a whole number"),
        ({"inner": {"widht": 2}}, "unknown key 'inner.widht'; did you mean 'inner.width'? valid: inner.width"),
    ],
)
def test_other_types_and_unknown_keys_are_faults(values: dict, says: str) -> None:
    arguments, faults = read(Outer, values)
    assert (arguments, faults) == ({}, [says])


def test_every_fault_is_found_at_once() -> None:
    arguments, faults = read(Outer, {"count": "x", "rate": 1, "on": 3, "colour": 1}, "outer.")
    assert arguments == {"rate": 1.0}
    assert len(faults) == 3
    assert all("outer." in fault for fault in faults)
