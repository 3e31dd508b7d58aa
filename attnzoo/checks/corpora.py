"""What `check corpus:NAME` holds a corpus to: the same UTF-8 bytes at every reading, split before anything else sees them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attnzoo import components
from attnzoo.arguments import demand
from attnzoo.checks.compare import Failed
from attnzoo.corpora.base import Corpus
from attnzoo.data.corpus import make_splits, split
from attnzoo.tokenizers import ByteTokenizer


@dataclass
class Subject:
    """A corpus that can be made anew."""

    make: Callable[[], Corpus]


def subject(cls: type[Corpus], given: Mapping[str, Any], device: str) -> Subject:
    options, faults = components.read_class(cls.Options, "corpus", cls.name, given, "")
    demand(f"the corpus {cls.__name__} cannot be checked", faults)
    assert options is not None
    made = Subject(lambda: cls(cls.Options(**vars(options))))
    demand(f"the corpus {cls.__name__} cannot be checked", made.make().problems())
    return made


def reads_the_same(s: Subject) -> str:
    """The bytes are the same at every reading, of one corpus and of one made anew: a run goes on with the same text alone."""
    one, other = s.make(), s.make()
    first = one.read()
    for said, again in {"read again": one.read(), "made anew": other.read()}.items():
        if again != first:
            at = next(
                (n for n, (a, b) in enumerate(zip(first, again, strict=False)) if a != b), min(len(first), len(again))
            )
            raise Failed(f"the same {len(first)} bytes", f"{len(again)} bytes, other ones from byte {at} on", said)
    return f"{len(first)} bytes, 3 readings"


def is_utf8(s: Subject) -> str:
    """It gives bytes of UTF-8 text, and some."""
    text = s.make().read()
    if not isinstance(text, bytes):
        raise Failed("bytes", type(text).__name__)
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise Failed("UTF-8", f"byte 0x{text[error.start]:02x}", f"byte {error.start}") from None
    if not text.strip():
        raise Failed("a text", f"{len(text)} blank bytes")
    return f"{len(text)} bytes"


def is_split_first(s: Subject) -> str:
    """The end of the text is the validation split, whole characters in both; a tokenizer is fitted to the training split alone,
    and the bytes of both are those of the text."""
    text, seen = s.make().read(), []

    def fit(train: bytes) -> ByteTokenizer:
        seen.append(train)
        return ByteTokenizer()

    splits = make_splits(text, {}, 0.1, fit)
    train, validation = split(text, 0.1)
    if seen != [train] or train + validation != text:
        raise Failed(
            "the training split alone", f"{[len(each) for each in seen]} bytes", "what the tokenizer is fitted to"
        )
    counts = (splits.n_bytes_train, splits.n_bytes_validation)
    if sum(counts) != len(text) or min(counts) < 1:
        raise Failed(f"{len(text)} bytes in two splits", f"{counts[0]} and {counts[1]}")
    for name, part in (("training", train), ("validation", validation)):
        try:
            part.decode()
        except UnicodeDecodeError:
            raise Failed("whole characters", "a part of one", f"the {name} split") from None
    return f"{counts[0]} and {counts[1]} bytes"


def says_where_it_comes_from(s: Subject) -> str:
    """Its provenance names a source and can stand in a record."""
    provenance = s.make().provenance
    if not isinstance(provenance, dict) or not provenance.get("source"):
        raise Failed("a dict with a source", repr(provenance))
    try:
        json.dumps(provenance)
    except (TypeError, ValueError) as error:
        raise Failed("what JSON knows", str(error)) from None
    return ", ".join(provenance)


PROPERTIES = (reads_the_same, is_utf8, is_split_first, says_where_it_comes_from)
