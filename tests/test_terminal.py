"""What others wrote cannot command the terminal, and what a program reads holds nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from attnzoo import cli
from attnzoo.checks.report import FAILED, Result
from attnzoo.errors import NumericalError, RequestError, traceback_text
from attnzoo.terminal import one_line, printable, stdout_apart
from attnzoo.training.log import STARTED_AGAIN, last_traceback, write_traceback

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
    assert long.endswith("(998000 more characters)")


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
    monkeypatch.setattr("attnzoo.training.log.last_traceback", lambda path: bad)
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


LONG = "x" * 1_000_000


def test_an_error_is_shown_at_a_length_that_can_be_read_and_kept_whole() -> None:
    error = RequestError(LONG, [LONG, *map(str, range(200))])
    assert len(str(error)) < 6000
    assert "(998000 more characters)" in str(error)
    assert str(error).endswith("and 101 more")
    assert error.whole == "\n  - ".join([LONG, LONG, *map(str, range(200))])
    assert traceback_text(error).endswith(error.whole + "\n")
    assert str(RequestError("short", ["a", "b"])) == RequestError("short", ["a", "b"]).whole == "short\n  - a\n  - b"


@pytest.mark.parametrize("error", [RequestError("no", [LONG]), ValueError(LONG)])
@pytest.mark.parametrize("debug", [True, False])
def test_a_command_says_where_the_whole_of_it_is(error, debug, monkeypatch, capsys, tmp_path) -> None:
    def raising(*_):
        raise error

    monkeypatch.setattr(cli, "run", raising)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cli.main(["list", *["--debug"] * debug])
    said = capsys.readouterr().err
    assert len(said) < 25_000
    assert ("Traceback" in said) == debug
    (kept,) = tmp_path.glob("attnzoo-*.txt")
    assert str(kept) in said
    assert LONG in kept.read_text()


def test_a_log_keeps_it_whole_and_shows_both_ends(tmp_path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    for said in (f"{LONG}the end", "second"):
        try:
            raise NumericalError("no", [said])
        except NumericalError as error:
            write_traceback(log, error)
        shown = last_traceback(log)
        assert len(shown) < 21_000
        assert "Traceback" in shown
        assert shown.endswith(said[-7:] + "\n")
    assert log.read_text().count(f"{LONG}the end") == 1
    log.write_text(log.read_text() + f"{STARTED_AGAIN} later ---\nlast words\n")
    assert last_traceback(log) == " later ---\nlast words\n"


def test_what_a_check_found_is_of_a_length_that_can_be_read() -> None:
    result = Result("definition", "any", FAILED, LONG, LONG, LONG, LONG)
    assert len(str(result)) < 10_000
    assert result.actual.endswith("(998000 more characters)")
