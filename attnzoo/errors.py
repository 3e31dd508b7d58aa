"""Typed errors. Each carries *all* its reasons, so that a person fixes them in one go."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

LONGEST_LINE, MOST_SHOWN, LONGEST_TRACEBACK = 2000, 100, 20_000
"""Of what is shown: characters of a line, reasons, characters of a traceback."""


class AttnzooError(Exception):
    """Base of every error the package raises on purpose.

    Args:
        message: one line that says what cannot be done.
        reasons: every reason, shown one a line below the message.
    """

    exit_status = 1

    def __init__(self, message: str, reasons: Sequence[str] = ()) -> None:
        self.message = message
        self.reasons = list(reasons)
        super().__init__(message)

    def __str__(self) -> str:
        """Message and reasons, each of a length that can be read: what a library says may hold a tensor. `whole` has all."""
        lines = [shortened(str(line), LONGEST_LINE) for line in (self.message, *self.reasons[:MOST_SHOWN])]
        more = [f"and {len(self.reasons) - MOST_SHOWN} more"] if len(self.reasons) > MOST_SHOWN else []
        return "\n  - ".join([*lines, *more])

    @property
    def whole(self) -> str:
        """The same uncut."""
        return "\n  - ".join(map(str, [self.message, *self.reasons]))

    def __reduce__(self):  # pickled whole across processes; the default would lose the reasons
        return (type(self), (self.message, self.reasons))


class RequestError(AttnzooError, ValueError):
    """The request itself is wrong: a shape, a name, a key, a file. Nothing has been started."""

    exit_status = 2


class Refused(RequestError):
    """A backend cannot honour the request; it never drops or approximates part of it."""


class NumericalError(AttnzooError, ArithmeticError):
    """A run produced a NaN or an infinity; the message names the layer."""


class Stopped(KeyboardInterrupt):
    """A run was asked to end, by Ctrl-C or by SIGTERM, and has written what it had.

    Args:
        signum: the signal; ``exit_status`` is what a shell reports for it, 130 or 143.
        message: one line that says where it ended.
    """

    def __init__(self, signum: int, message: str = "") -> None:
        super().__init__(message)
        self.signum, self.exit_status = signum, 128 + signum


LONGEST_TEXT, MOST_REASONS = 600, 20
"""Of what stands in a record or a table."""


def shortened(text: str, most: int = LONGEST_TEXT) -> str:
    """The text, or its beginning and how much more there was: what a library raises may hold a whole tensor.

    >>> shortened("0123456789" * 10, 10)
    '0123456789 … (90 more characters)'
    """
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most} more characters)"


def both_ends(text: str, most: int) -> str:
    """The text without its middle: of a traceback the calls stand first, the error last.

    >>> both_ends("0123456789" * 10, 10)
    '01234\\n… (90 more characters) …\\n56789'
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n… ({len(text) - 2 * half} more characters) …\n{text[-half:]}"


SAME = {"gpu": "cuda"}
"""What people say for a choice that is spelt nothing like it."""


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The closest valid choice, or None when nothing is close."""
    names = list(choices)
    if SAME.get(word.lower()) in names:
        return SAME[word.lower()]
    found = difflib.get_close_matches(word, names, n=1, cutoff=0.55)
    return found[0] if found else None


def unknown(kind: str, word: str, choices: Iterable[str]) -> str:
    """'unknown backend 'sdpaa'; did you mean 'sdpa'? valid: …' on one line."""
    names = sorted(choices)
    near = nearest(word, names)
    hint = f" did you mean {near!r}?" if near else ""
    return f"unknown {kind} {word!r};{hint} valid: {', '.join(names)}"


def unknown_backend(word: str, choices: Iterable[str]) -> str:
    """The same of a backend; where a file was named, what reads files and what does not."""
    if ".py" not in word:
        return unknown("backend", word, choices)
    return (
        f"unknown backend {word!r}: check and leak alone read FILE.py:NAME; all else takes what a package has registered "
        "(entry point attnzoo.backends)"
    )


def traceback_text(error: BaseException) -> str:
    """The traceback whole, as a file keeps it: with all that the error says."""
    import traceback

    whole = error.whole if isinstance(error, AttnzooError) else str(error)
    said = "".join(traceback.format_exception(error))
    return said if whole in said else f"{said}{whole}\n"


def choice_fault(key: str, value: Any, choices: Iterable[str]) -> str:
    """'trainer.device=gpu: did you mean cuda? valid: auto, cpu, cuda' on one line."""
    near = nearest(str(value), choices)
    return f"{key}={value}: {f'did you mean {near}? ' if near else ''}valid: {', '.join(choices)}"
