"""What an option of a command takes: each function makes the ``type`` of an argparse argument, which says what would be right."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence

from attnzoo.arguments import DEVICE, DEVICES, LARGEST, LARGEST_SEED
from attnzoo.errors import unknown

MOST_TOKENS = 2**20  # of one row: what is longer fits into no memory here


def whole(least: int = 1, most: int = LARGEST) -> Callable[[str], int]:
    """A whole number, ``least`` to ``most``, in digits."""

    def read(text: str) -> int:
        if re.fullmatch(r"[+-]?[0-9]{1,20}", text, re.ASCII) and least <= int(text) <= most:
            return int(text)
        raise ArgumentTypeError(f"must be a whole number, {least} to {most}")

    return read


def wholes(least: int = 1, most: int = LARGEST) -> Callable[[str], str]:
    """Whole numbers with commas between them, as they were written."""
    each = whole(least, most)

    def read(text: str) -> str:
        for word in text.split(","):
            try:
                each(word)
            except ArgumentTypeError as error:
                raise ArgumentTypeError(f"{word!r} {error}") from error
        return text

    return read


def real(within: Callable[[float], bool], bounds: str) -> Callable[[str], float]:
    """A finite number for which ``within`` holds, which ``bounds`` says in words."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isfinite(value) and within(value):
            return value
        raise ArgumentTypeError(f"must be a number, {bounds}")

    return read


def choices(known: Sequence[str]) -> Callable[[str], str]:
    """Some of the known words, with commas between them."""

    def read(text: str) -> str:
        if wrong := [unknown("value", word, known) for word in text.split(",") if word not in known]:
            raise ArgumentTypeError("; ".join(wrong))
        return text

    return read


def words(text: str) -> str:
    """Words with commas between them."""
    if all(word.strip() for word in text.split(",")):
        return text
    raise ArgumentTypeError("must be words with commas between them")


def place(text: str) -> str:
    """The name of a file or a folder."""
    if text.strip() and "\0" not in text:
        return text
    raise ArgumentTypeError("must be the name of a file or a folder")


def device(text: str) -> str:
    """A device by its name; whether it is there is asked later, of torch."""
    if DEVICE.fullmatch(text):
        return text
    raise ArgumentTypeError(unknown("device", text, DEVICES))


tokens = whole(1, MOST_TOKENS)
seed = whole(0, LARGEST_SEED)
seconds = real(lambda s: s > 0, "more than 0")
