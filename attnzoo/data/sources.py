"""The text of a configuration: its bytes, what tells it from others, and why it cannot be had. No torch here."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import Any

from attnzoo import components
from attnzoo.corpora.base import Corpus
from attnzoo.data.config import DataConfig
from attnzoo.errors import RequestError
from attnzoo.open_groups import option_faults, option_names
from attnzoo.settings import chosen


def corpus_of(cfg: DataConfig) -> Corpus:
    """Where the text comes from."""
    return components.make("corpus", cfg.name, cfg.options, "data.")


def data_problems(cfg: DataConfig) -> list[str]:
    """Every reason why ``cfg`` cannot be loaded, as far as it shows without loading it; own files are opened."""
    problems = option_faults("data", cfg)
    for key, kind in chosen(DataConfig).items():
        if (name := getattr(cfg, key)) in components.names(kind):
            problems += components.lacking(kind, name, f"data.{key}")
    if cfg.name in components.names("corpus"):
        own = {key: cfg.options[key] for key in option_names("corpus", cfg.name) if key in cfg.options}
        senseless = components.read_options("corpus", cfg.name, own, "data.")[1]
        problems += [] if senseless else corpus_of(cfg).problems()
    if not 0.0 < cfg.validation_fraction < 1.0:
        problems.append(f"data.validation_fraction={cfg.validation_fraction}: must be between 0 and 1, both excluded")
    if cfg.sha256 and not re.fullmatch("[0-9a-f]{64}", cfg.sha256):
        problems.append(f"data.sha256={cfg.sha256}: must be 64 hexadecimal digits in lower case, or empty")
    return problems


def read_source(cfg: DataConfig) -> tuple[bytes, dict[str, Any]]:
    """The text as UTF-8 bytes and its provenance (source, licence where known, ``sha256``, ``bytes``).

    Raises:
        RequestError: with all of `data_problems`; the text cannot be had, is none, or is not that of ``cfg.sha256``.
    """
    if problems := data_problems(cfg):
        raise RequestError("the data cannot be loaded", problems)
    corpus = corpus_of(cfg)
    text = corpus.read()
    if not isinstance(text, bytes):
        raise RequestError(f"the corpus {cfg.name} gives {type(text).__name__}, not bytes")
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the corpus {cfg.name} gives no UTF-8: byte 0x{text[error.start]:02x} at offset {error.start}"
        ) from None
    found = hashlib.sha256(text).hexdigest()
    if cfg.sha256 not in ("", found):
        raise RequestError(
            f"the text of {corpus.title} is another: its SHA-256 is {found}, data.sha256 asks for {cfg.sha256}"
        )
    return text, {**corpus.provenance, "sha256": found, "bytes": len(text)}


def text_sha256(cfg: DataConfig) -> str:
    """What tells this text from every other: the SHA-256 of what `read_source` gives today, wherever it comes from.

    Raises:
        RequestError: as `read_source`, but for ``cfg.sha256``, which is not looked at.
    """
    return read_source(replace(cfg, sha256=""))[1]["sha256"]


def local_sha256(cfg: DataConfig) -> str:
    """`text_sha256` of a text in files of this machine, which is another run once it is edited; '' of others, and of what
    cannot be read, which is said elsewhere."""
    known = cfg.name in components.names("corpus")
    return (
        text_sha256(cfg)
        if known and components.declared("corpus", cfg.name, "local") and not data_problems(cfg)
        else ""
    )


def text_name(cfg: DataConfig) -> str:
    """What a message calls the text: its files, its data set, or its own name."""
    return corpus_of(cfg).title
