"""Benchmarks of others: every field that cannot be is named, none ends in an internal error."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path

import pytest

from attnzoo.errors import RequestError
from attnzoo.report.bench_file import read_bench
from attnzoo.report.benches import find_benches, show_benches

KEPT = Path(__file__).resolve().parents[2] / "experiments/bench"
WRONG = [None, "x", {}, 1e308, -1, [[1]], True]


def fewer(held):
    """One of each list, so that each field is tried once."""
    if isinstance(held, dict):
        return {key: fewer(value) for key, value in held.items() if key not in ("machine", "samples", "why")}
    return [fewer(value) for value in held[:1]] if isinstance(held, list) else held


def places(held, path=()):
    yield path
    inner = held.items() if isinstance(held, dict) else enumerate(held[:1]) if isinstance(held, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def test_every_kept_benchmark_is_read():
    assert all(read_bench(path) is not None for path in KEPT.glob("*.json"))


@pytest.mark.parametrize("name", ["growth", "peers"])
def test_no_field_of_a_benchmark_ends_in_an_internal_error(tmp_path, name, capsys):
    whole = fewer(json.loads((KEPT / f"{name}.json").read_text())) | {"machine": {"torch": "2"}}
    file, refused = tmp_path / "x.json", 0
    for path in list(places(whole))[1:]:
        for wrong in [*WRONG, "gone"]:
            changed = copy.deepcopy(whole)
            holder = changed
            for key in path[:-1]:
                holder = holder[key]
            if wrong == "gone" and isinstance(holder, dict):
                del holder[path[-1]]
            else:
                holder[path[-1]] = wrong
            file.write_text(json.dumps(changed))
            try:
                show_benches(find_benches(file))
            except RequestError:
                refused += 1
    assert refused > 50


def test_a_wrong_field_is_named(tmp_path):
    (tmp_path / "x.json").write_text('{"rows": [{"backend": "sdpa", "op": 3, "status": "ok", "T": -1}], "growth": 1}')
    with pytest.raises(RequestError) as caught:
        read_bench(tmp_path / "x.json")
    due = ["rows[0].op: must be a text", "rows[0].T: must be a positive size", "growth: must be a list"]
    assert caught.value.reasons == due


@pytest.mark.parametrize("name", ["growth", "peers"])
def test_no_older_benchmark_ends_in_an_internal_error(tmp_path, name, capsys):
    """``--against`` a file of others: refused with what is wrong, or every row is compared or named."""
    from attnzoo.commands.bench import _older, _worse

    whole = fewer(json.loads((KEPT / f"{name}.json").read_text())) | {"machine": {"torch": "2"}}
    file, compared = tmp_path / "x.json", 0
    for path in list(places(whole))[1:]:
        for wrong in [*WRONG, "gone", 0, 2**60, "", []]:
            changed = copy.deepcopy(whole)
            holder = changed
            for key in path[:-1]:
                holder = holder[key]
            if wrong == "gone" and isinstance(holder, dict):
                del holder[path[-1]]
            else:
                holder[path[-1]] = wrong
            file.write_text(json.dumps(changed))
            with suppress(RequestError):
                _worse(whole, _older(str(file)), str(file))
                compared += 1
    assert compared > 50


def test_a_row_that_is_compared_with_nothing_is_named(tmp_path, capsys):
    from attnzoo.commands.bench import _older, _worse

    row = {
        "backend": "sdpa",
        "level": "attention",
        "op": "forward",
        "status": "ok",
        "T": 64,
        "B": 1,
        "dtype": "float32",
    }
    timing = {"median": 1.0, "low": 0.9, "high": 1.1}
    (tmp_path / "x.json").write_text(json.dumps({"rows": [row | {"timing": timing}]}))
    found = {"rows": [row | {"timing": timing}, row | {"T": 128, "timing": timing}]}
    assert not _worse(found, _older(str(tmp_path / "x.json")), "x.json")
    assert capsys.readouterr().err == (
        "1 of 2 rows have no counterpart in x.json:\n  sdpa, attention, forward, float32, T 128, B 1\n"
    )
    del timing["low"]
    (tmp_path / "x.json").write_text(json.dumps({"rows": [row | {"timing": timing}]}))
    with pytest.raises(RequestError, match="no benchmark that can be read") as wrong:
        _older(str(tmp_path / "x.json"))
    assert wrong.value.reasons == ["rows[0].timing.low is missing"]
