"""What `check tokenizer:NAME` holds a tokenizer to: nothing of a text is lost, its bytes are counted right, and it comes back
from what a folder keeps of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnzoo import components
from attnzoo.arguments import demand
from attnzoo.checks.compare import Failed
from attnzoo.corpora.moby_dick import read_embedded
from attnzoo.tokenizers.base import Tokenizer, differ

STRANGE = "".join(
    [
        "The quick brown fox jumps over the lazy dog. 0123456789\n\n\t  two spaces\r\nna\u00efve \u201cquotes\u201d\n",
        "e\u0301 \u6f22\u5b57 \u0440\u0443\u0441 \u0627\u0644 \U0001f600 \u200d\u2028 \x00\x7f\n no end of line",
    ]
)
"""Every length of UTF-8 characters, a combining one, ends of lines, control characters, none at the end."""


@dataclass
class Subject:
    """A tokenizer that can be fitted anew, and the text that it is fitted to."""

    cls: type[Tokenizer]
    fit: Callable[[], Tokenizer]
    texts: dict[str, bytes]


def subject(cls: type[Tokenizer], given: Mapping[str, Any], device: str) -> Subject:
    options, faults = components.read_class(cls.Options, "tokenizer", cls.name, given, "")
    if cls.name in components.names("tokenizer"):
        faults += components.lacking("tokenizer", cls.name, "tokenizer")
    demand(f"the tokenizer {cls.__name__} cannot be checked", faults)
    book = read_embedded("moby_dick")[0][:40_000].decode("utf-8", "ignore").encode()
    texts = {"the text it was fitted to": book, "characters it has not seen": STRANGE.encode(), "no text": b""}
    return Subject(cls, lambda: cls.fit(book, cls.Options(**vars(options))), texts)


def is_lossless(s: Subject) -> str:
    """Decoding what was encoded gives the text back, to the byte, with every id below the size of the vocabulary."""
    tokenizer = s.fit()
    for said, text in s.texts.items():
        ids = np.asarray(tokenizer.encode_array(text))
        if ids.ndim != 1 or ids.dtype not in (np.uint8, np.int32):
            raise Failed("(n,) uint8 or int32", f"{ids.shape} {ids.dtype}", said)
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < tokenizer.vocab_size:
            raise Failed(f"ids from 0 to {tokenizer.vocab_size - 1}", f"{ids.min()} to {ids.max()}", said)
        back = tokenizer.decode(ids.tolist()).encode()
        if back != text:
            at = next(
                (n for n, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), min(len(text), len(back))
            )
            raise Failed(f"{text[at : at + 20]!r}", f"{back[at : at + 20]!r}", f"{said}, byte {at}")
    return ", ".join(s.texts)


def counts_bytes(s: Subject) -> str:
    """The bytes that ids stand for sum to those of the text: bits a byte are counted by them."""
    tokenizer = s.fit()
    lengths = np.asarray(tokenizer.byte_lengths())
    if lengths.shape != (tokenizer.vocab_size,):
        raise Failed(f"({tokenizer.vocab_size},) lengths", f"{lengths.shape}")
    for said, text in s.texts.items():
        found = int(lengths[np.asarray(tokenizer.encode_array(text), np.int64)].sum())
        if found != len(text):
            raise Failed(f"{len(text)} bytes", f"{found}", said)
    return ", ".join(s.texts)


def comes_back_from_its_state(s: Subject) -> str:
    """Its state is JSON with its name, and makes a tokenizer with the same ids for every text."""
    tokenizer = s.fit()
    state = tokenizer.state()
    if state.get("name") != tokenizer.name:
        raise Failed(f"name: {tokenizer.name}", f"name: {state.get('name')}", "the state")
    again = s.cls.from_state(json.loads(json.dumps(state)))
    if how := differ(tokenizer, again):
        raise Failed("an equal tokenizer", how)
    for said, text in s.texts.items():
        if not np.array_equal(tokenizer.encode_array(text), again.encode_array(text)):
            raise Failed("the same ids", "others", said)
    return f"{len(json.dumps(state))} characters of JSON"


def fits_the_same(s: Subject) -> str:
    """Fitted twice to one text, it is the same: two seeds of a comparison have the same ids."""
    one, other = s.fit(), s.fit()
    if how := differ(one, other):
        raise Failed("an equal tokenizer", how)
    return f"{one.vocab_size} ids"


PROPERTIES = (is_lossless, counts_bytes, comes_back_from_its_state, fits_the_same)
