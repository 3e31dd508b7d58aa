"""Text files of a person's own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnzoo.components import register
from attnzoo.corpora.base import Corpus, join_documents
from attnzoo.errors import nearest
from attnzoo.options import Options


@dataclass(frozen=True)
class FilesOptions(Options):
    """paths: the text files, in their order."""

    paths: tuple[str, ...] = ()


@register("files")
class Files(Corpus):
    """Text files one after the other, each ending its line."""

    source = "attnzoo"
    Options = FilesOptions
    options: FilesOptions
    local = True

    def read(self) -> bytes:
        return join_documents([Path(path).expanduser().read_bytes() for path in self.options.paths])

    def problems(self) -> list[str]:
        return file_problems(self.options.paths) if self.options.paths else ["data.name=files needs data.paths=[...]"]

    @property
    def title(self) -> str:
        return ", ".join(self.options.paths)

    @property
    def provenance(self) -> dict[str, Any]:
        return {"source": "files", "paths": list(self.options.paths)}


def file_problems(paths: Sequence[str]) -> list[str]:
    """What is wrong with each of the text files; a copy would put the same text into training and validation."""
    problems: list[str] = []
    seen: dict[bytes, str] = {}
    for path in paths:
        file = Path(path).expanduser()
        if problem := _file_problem(file):
            problems.append(f"{path}: {problem}")
            continue
        digest = hashlib.sha256(file.read_bytes()).digest()
        if digest in seen:
            problems.append(f"{path}: the same text as {seen[digest]}")
        seen.setdefault(digest, path)
    return problems


def _file_problem(file: Path) -> str | None:
    try:
        if file.is_dir():
            return "is a folder; name the text files in it"
        if not file.exists():
            siblings = [entry.name for entry in file.parent.iterdir()] if file.parent.is_dir() else []
            near = nearest(file.name, siblings)
            return "no such file" + (f"; did you mean {file.parent / near}?" if near else "")
        if not file.is_file():
            return "is not a regular file"
        raw = file.read_bytes()
        raw.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 text: byte 0x{error.object[error.start]:02x} at offset {error.start}"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not raw.strip():
        return "empty"
    if b"\0" in raw:
        return f"binary: a zero byte at offset {raw.index(0)}"
    return None
