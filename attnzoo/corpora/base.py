"""What every corpus gives: UTF-8 text, and where it came from. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from attnzoo import options
from attnzoo.components import Component
from attnzoo.options import Options


class Corpus(Component):
    """A text. One writes `read`; its settings are ``self.options``.

    Its end is kept for validation, and a tokenizer is fitted to what is left, whatever the corpus (see `attnzoo.data.corpus`).
    The SHA-256 of its bytes stands in the record, and a run goes on with the same bytes alone: `read` gives them at every call.

    Attributes:
        local: it reads files of this machine, which may be edited: a run is known by their content, not by their names.
    """

    kind: ClassVar[str] = "corpus"
    local: ClassVar[bool] = False

    def __init__(self, options: Options) -> None:
        self.options: Any = options

    def read(self) -> bytes:
        """The whole text, in UTF-8.

        Raises:
            RequestError: it cannot be had.
        """
        raise NotImplementedError(f"{type(self).__name__} reads nothing")

    def problems(self) -> list[str]:
        """Why it cannot be read, as far as it shows without reading it; [] = it can. Asked before any work."""
        return []

    @property
    def title(self) -> str:
        """What a message calls the text."""
        return self.name

    @property
    def provenance(self) -> dict[str, Any]:
        """Where it came from, for the record: a source, a licence where it is known, what the text depends on."""
        return {"source": self.name, **options.values(self.options, self.kind)}


def join_documents(documents: Sequence[bytes]) -> bytes:
    """One after the other, each ending its line."""
    return b"".join(text if text.endswith(b"\n") else text + b"\n" for text in documents)


def cut_at_character(text: bytes, at: int) -> int:
    """The last character boundary of UTF-8 ``text`` that is not after byte ``at``."""
    while 0 < at < len(text) and text[at] & 0xC0 == 0x80:  # a continuation byte
        at -= 1
    return at
