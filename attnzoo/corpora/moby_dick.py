"""The text that lies in the package."""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import cached_property
from importlib import resources
from typing import Any

from attnzoo.components import register
from attnzoo.corpora.base import Corpus
from attnzoo.errors import RequestError


@register("moby_dick")
class MobyDick(Corpus):
    """Moby-Dick; or, The Whale, by Herman Melville (1851): 1.2 MB of English, which need no network."""

    source = "https://www.gutenberg.org/ebooks/2701"

    def read(self) -> bytes:
        return self._both[0]

    @property
    def provenance(self) -> dict[str, Any]:
        return dict(self._both[1])

    @cached_property
    def _both(self) -> tuple[bytes, dict[str, Any]]:
        return read_embedded("moby_dick")


def read_embedded(name: str) -> tuple[bytes, dict[str, Any]]:
    """A text of the package and its provenance.

    Raises:
        RequestError: the file is not the one its provenance names.
    """
    folder = resources.files("attnzoo.data") / "texts"
    origin = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    try:
        text = gzip.decompress((folder / f"{name}.txt.gz").read_bytes())
    except (OSError, EOFError) as error:
        raise RequestError(f"the embedded text {name} is damaged ({error}): install attnzoo again") from error
    found = hashlib.sha256(text).hexdigest()
    if found != origin["sha256"]:
        raise RequestError(f"the embedded text {name} is damaged: SHA-256 {found}, not {origin['sha256']}")
    return text, origin
