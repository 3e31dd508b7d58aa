"""What an exception means for a cell, and whose line it is that broke."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager

import pytest
import torch

from attnzoo.errors import LONGEST_TEXT, MOST_REASONS, AttnzooError, Refused, RequestError
from attnzoo.measure.outcome import _foreign, outcome, where


@pytest.mark.parametrize(
    ("error", "status", "reasons"),
    [
        (Refused("flex cannot", ["one", "two"]), "refused", ["one", "two"]),
        (Refused("flex cannot"), "refused", ["flex cannot"]),
        (RequestError("no such file", ["why"]), "failed", ["no such file", "why"]),
        (AttnzooError("broken"), "failed", ["broken"]),
        (ValueError("a\nb"), "failed", ["ValueError: a"]),
        (ValueError(""), "failed", ["ValueError: no message"]),
        (MemoryError(), "oom", ["MemoryError: no message"]),
        (torch.OutOfMemoryError("CUDA out of memory"), "oom", ["OutOfMemoryError: CUDA out of memory"]),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "oom", None),
        (RuntimeError("x\nnot enough memory: you tried"), "oom", ["RuntimeError: x"]),
    ],
    ids=repr,
)
def test_what_it_means(error, status, reasons):
    found = outcome(error)
    assert found[0] == status
    assert reasons is None or found[1] == reasons


def test_many_and_long_reasons_are_cut_and_counted():
    most = [f"reason {n}" for n in range(MOST_REASONS)]
    assert outcome(Refused("x", most))[1] == most
    assert outcome(Refused("x", [*most, "another", "and one"]))[1] == [*most, "and 2 more"]
    assert len(outcome(ValueError("a" * 100_000))[1][0]) < LONGEST_TEXT + 100
    assert len(outcome(Refused("x", ["b" * 100_000]))[1][0]) < LONGEST_TEXT + 100


def raised(work) -> BaseException:
    try:
        work()
    except Exception as error:
        return error
    raise AssertionError("it did not raise")


def test_the_line_is_that_of_who_wrote_the_code(tmp_path, monkeypatch):
    def mine():
        torch.zeros(2, 3) @ torch.zeros(2, 3)

    assert where(raised(mine)) == f"test_outcome.py:{mine.__code__.co_firstlineno + 1} in mine"

    def through_torch():
        torch.nn.Linear(2, 3)(torch.zeros(4, 5))

    def through_python():
        json.loads("x")

    @contextmanager
    def held():
        yield
        int("x")

    def through_both():
        with held():
            pass

    for work in (through_torch, through_python):
        assert where(raised(work)).endswith(f"in {work.__name__}")
    assert where(raised(through_both)).endswith("in held")
    assert where(raised(lambda: eval("1 / 0"))).endswith("in <lambda>")  # code of no file
    assert where(ValueError("never raised")) is None

    def through_ours():
        from attnzoo import build

        build("sdpa", n_heads=3, n_kv_heads=2, head_dim=8)

    assert where(raised(through_ours)).startswith("test_outcome.py:")  # not a frame of the package
    assert [_foreign(f"/env/lib/site-packages/{name}") for name in (
        "torch/nn/x.py", "lightning/x.py", "lightning_utilities/x.py", "pytorch_lightning/x.py", "contextlib.py", "fla/x.py",
    )] == [True] * 5 + [False]  # fmt: skip
    package = tmp_path / "site-packages"
    (package / "somebody").mkdir(parents=True)
    (package / "somebody" / "code.py").write_text("def broken():\n    int('x')\n")
    monkeypatch.syspath_prepend(str(package))
    import somebody.code

    try:
        assert where(raised(somebody.code.broken)) == "code.py:2 in broken"  # a package that is none of the known ones
    finally:
        for name in ("somebody.code", "somebody"):
            sys.modules.pop(name, None)


def test_ours_is_named_where_nobody_else_stands_in_between():
    assert where(raised_inside()).endswith(" in of")


def raised_inside() -> BaseException:
    """An exception whose frames are all of the package."""
    from attnzoo.measure.limit import Limit

    error = raised(lambda: Limit.of("x"))
    trace = error.__traceback__
    while trace is not None and "limit.py" not in trace.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    return error.with_traceback(trace)
