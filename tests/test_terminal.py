"""What others wrote cannot command the terminal, and what a program reads holds nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from attnzoo.terminal import one_line, printable, stdout_apart

OBEYED = [
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\r",
    "\x08",
    "\x7f",
    "\x9b31m",
    "\u202e",
    "\u2066",
    "\u200b",
    "\ufeff",
    "\udcff",
]


@pytest.mark.parametrize("text", OBEYED, ids=ascii)
def test_what_a_terminal_would_obey_is_an_escape(text: str) -> None:
    made = printable(f"a{text}b")
    assert made.encode()  # halves of characters too
    assert not set(text) & set(made) - set("[2J]0;title31m")
    assert json.loads(f'"{made}"') == f"a{text}b"


def test_what_is_read_stays() -> None:
    kept = "λ ≤ 3\n\tT² · 中文 'quoted' \\n é"
    assert printable(kept) == kept


def test_an_exception_is_one_line_of_a_length_that_can_be_read() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert one_line(ValueError("a\nb\x1b[31m")) == "ValueError: a b\\u001b[31m"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert one_line(Odd()) == "Odd: (its text cannot be made: RuntimeError)"
    long = one_line(ValueError("x" * 1_000_000))
    assert len(long) < 2100
    assert long.endswith("(1000000 characters)")


CODE = """
import ctypes, os, subprocess, sys
from attnzoo.terminal import stdout_apart
print("before")
with stdout_apart() as real:
    print("printed")
    os.write(1, b"written\\n")
    ctypes.CDLL(None).puts(b"from C")
    subprocess.run([sys.executable, "-c", "print('child')"])
    real.write("document\\n")
print("after")
"""


def test_only_the_document_is_on_stdout() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.stdout == "before\ndocument\nafter\n"
    assert sorted(done.stderr.split("\n")) == ["", "child", "from C", "printed", "written"]


def test_a_captured_stdout_too(capsys: pytest.CaptureFixture) -> None:
    with stdout_apart() as real:
        print("printed")
        real.write("document\n")
    assert capsys.readouterr() == ("document\n", "printed\n")


@pytest.mark.parametrize("debug", [False, True])
def test_what_a_run_holds_is_text_in_the_output_of_train(debug, monkeypatch, capsys) -> None:
    """A plug-in's name, kernel, error and warnings."""
    from attnzoo.commands import train

    bad = "x\x1b[2J\x9b\u202e"
    record = {"status": "failed", "attention": bad, "seed": bad, "reasons": [bad], "warnings": [bad], "kernel_resolved": bad,
              "error": {"type": bad, "frame": bad}}  # fmt: skip
    monkeypatch.setattr("attnzoo.training.train", lambda cfg: record)
    monkeypatch.setattr("attnzoo.training.closing.last_traceback", lambda path: bad)
    monkeypatch.setattr(train, "composed", lambda *arguments: SimpleNamespace(run_dir=bad))
    train.run(SimpleNamespace(multirun=False, debug=debug))
    out, err = capsys.readouterr()
    assert out.count("x") >= 3
    assert err.count("x\\u001b[2J") == (2 if debug else 4)
    assert not set(out + err) & set("\x1b\x9b\u202e")


def test_what_a_cell_and_a_start_say_is_text(capsys) -> None:
    from attnzoo.comparison.run import Progress
    from attnzoo.terminal import say

    bad = "x\x1b[2J\x9b\u202e"
    say(bad)
    account = SimpleNamespace(add=lambda *arguments: None)
    Progress(1, 0, account)(SimpleNamespace(run=bad), {"status": "failed", "reasons": [bad]}, 1.0)
    assert capsys.readouterr().err.count("x\\u001b[2J\\u009b\\u202e") == 3
