"""Where the text comes from: UTF-8 bytes and their provenance. No torch here."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from attnzoo.data.config import DataConfig
from attnzoo.errors import RequestError, nearest, unknown

SOURCES = ("moby_dick", "files", "hf")
TOKENIZERS = ("bytes", "bpe")


def data_problems(cfg: DataConfig) -> list[str]:
    """Every reason why ``cfg`` cannot be loaded, as far as it shows without loading it; own files are opened."""
    return [*_setting_problems(cfg), *(file_problems(cfg.paths) if cfg.name == "files" else [])]


def read_source(cfg: DataConfig, cache_dir: str | Path | None = None) -> tuple[bytes, dict[str, Any]]:
    """The text as UTF-8 bytes and its provenance (source, licence where known, ``sha256``, ``bytes``).

    Raises:
        RequestError: with all of `data_problems`; the data set cannot be had; or the text is not that of ``cfg.sha256``.
    """
    if problems := data_problems(cfg):
        raise RequestError("the data cannot be loaded", problems)
    if cfg.name == "files":
        text = join_documents([Path(path).expanduser().read_bytes() for path in cfg.paths])
        origin: dict[str, Any] = {"source": "files", "paths": list(cfg.paths)}
    elif cfg.name == "hf":
        from attnzoo.data.huggingface import read_huggingface

        text, origin = read_huggingface(cfg, cache_dir)
    else:
        text, origin = read_embedded("moby_dick")
    found = hashlib.sha256(text).hexdigest()
    if cfg.sha256 not in ("", found):
        raise RequestError(
            f"the text of {text_name(cfg)} is another: its SHA-256 is {found}, data.sha256 asks for {cfg.sha256}"
        )
    return text, {**origin, "sha256": found, "bytes": len(text)}


def text_sha256(cfg: DataConfig) -> str:
    """What tells this text from every other: the SHA-256 of what `read_source` gives today, wherever it comes from.

    Raises:
        RequestError: as `read_source`, but for ``cfg.sha256``, which is not looked at.
    """
    return read_source(replace(cfg, sha256=""))[1]["sha256"]


def text_name(cfg: DataConfig) -> str:
    """What a message calls the text: its files, its data set, or its own name."""
    return ", ".join(cfg.paths) if cfg.name == "files" else cfg.dataset if cfg.name == "hf" else cfg.name


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


def join_documents(documents: Sequence[bytes]) -> bytes:
    """One after the other, each ending its line."""
    return b"".join(text if text.endswith(b"\n") else text + b"\n" for text in documents)


def cut_at_character(text: bytes, at: int) -> int:
    """The last character boundary of UTF-8 ``text`` that is not after byte ``at``."""
    while 0 < at < len(text) and text[at] & 0xC0 == 0x80:  # a continuation byte
        at -= 1
    return at


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


def _setting_problems(cfg: DataConfig) -> list[str]:
    problems = []
    if cfg.name not in SOURCES:
        problems.append(unknown("data.name", cfg.name, SOURCES))
    if cfg.name == "files" and not cfg.paths:
        problems.append("data.name=files needs data.paths=[...]")
    if cfg.name != "files" and cfg.paths:
        problems.append(f"data.paths belongs to data.name=files, not to {cfg.name}")
    if cfg.name == "hf" and not cfg.dataset:
        problems.append("data.name=hf needs data.dataset=OWNER/NAME, or a local folder")
    if cfg.name == "hf" and cfg.max_bytes < 1:
        problems.append(f"data.max_bytes={cfg.max_bytes}: must be at least 1")
    if cfg.name == "hf" and not installed("datasets"):
        problems.append("data.name=hf needs the package datasets: pip install 'attnzoo[hf]'")
    if cfg.tokenizer not in TOKENIZERS:
        problems.append(unknown("data.tokenizer", cfg.tokenizer, TOKENIZERS))
    if cfg.tokenizer == "bpe" and cfg.bpe_vocab < 257:
        problems.append(f"data.bpe_vocab={cfg.bpe_vocab}: must be at least 257, the 256 bytes and one merge")
    if cfg.tokenizer == "bpe" and not installed("tokenizers"):
        problems.append("data.tokenizer=bpe needs the package tokenizers: pip install 'attnzoo[bpe]'")
    if not 0.0 < cfg.validation_fraction < 1.0:
        problems.append(f"data.validation_fraction={cfg.validation_fraction}: must be between 0 and 1, both excluded")
    if cfg.sha256 and not re.fullmatch("[0-9a-f]{64}", cfg.sha256):
        problems.append(f"data.sha256={cfg.sha256}: must be 64 hexadecimal digits in lower case, or empty")
    return problems


def installed(package: str) -> bool:
    """Whether ``package`` can be found, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # it is imported and has no spec of its own
        return True
