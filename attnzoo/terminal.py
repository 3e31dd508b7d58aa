"""What reaches the terminal: text of others is made harmless, and a document that a program reads is kept apart."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from attnzoo.errors import LONGEST_LINE, shortened

# control characters (a terminal obeys them), marks that reorder or hide what follows, halves of characters
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def printable(text: object) -> str:
    r"""The text with everything a terminal would obey, or cannot show, as an escape; line ends and tabs stay. What is
    valid JSON stays so.

    >>> printable("a\x1b[2Jb")
    'a\\u001b[2Jb'
    """
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", str(text))


def say(line: str) -> None:
    """A line on standard error, at once."""
    print(printable(line), file=sys.stderr, flush=True)


def one_line(error: BaseException) -> str:
    """An exception of somebody else's code as 'Type: message', printable and of a length that can be read."""
    try:
        said = str(error)
    except Exception as failure:  # its __str__ is their code too
        said = f"(its text cannot be made: {type(failure).__name__})"
    cut = shortened(" ".join(said.split()), LONGEST_LINE)
    return printable(f"{type(error).__name__}: {cut}" if cut else type(error).__name__)


@contextmanager
def stdout_apart() -> Iterator[TextIO]:
    """What is printed meanwhile goes to stderr, also from C and from child processes; yields the real stdout.

    A plug-in may print when it is imported or run, where a program reads one JSON document.
    """
    stream = sys.stdout
    held = _descriptor(stream)
    if (
        held is None or _descriptor(sys.stderr) is None
    ):  # captured, as in a notebook or a test: there is no file beneath
        sys.stdout = sys.stderr
        try:
            yield stream
        finally:
            sys.stdout = stream
        return
    stream.flush()
    kept = os.dup(held)
    real = open(os.dup(held), "w", encoding=stream.encoding, errors=stream.errors, newline="\n")  # noqa: SIM115
    os.dup2(sys.stderr.fileno(), held)
    try:
        yield real
    finally:
        stream.flush()
        _flush_c()
        try:
            real.close()
        finally:
            os.dup2(kept, held)
            os.close(kept)


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _flush_c() -> None:
    """What C code has printed into its own buffer would come out at the very end, behind the document."""
    import ctypes

    with suppress(OSError, TypeError, AttributeError):  # no C library that can be asked, as on Windows
        ctypes.CDLL(None).fflush(None)
