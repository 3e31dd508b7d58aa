"""Text streamed from a Hugging Face data set (the extra ``hf``). No torch here."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnzoo.arguments import bounded, demand
from attnzoo.components import register
from attnzoo.corpora.base import Corpus, cut_at_character, join_documents
from attnzoo.errors import RequestError, unknown
from attnzoo.files import write_bytes_atomic
from attnzoo.options import Options


@dataclass(frozen=True)
class HuggingFaceOptions(Options):
    """dataset: OWNER/NAME, or a local folder. subset: of it. split: of it. text_field: which field of a row is the text.
    max_bytes: streaming stops there."""

    dataset: str = ""
    subset: str | None = None
    split: str = "train"
    text_field: str = "text"
    max_bytes: int = 50_000_000

    def __post_init__(self) -> None:
        demand(
            "these options make no sense", bounded("max_bytes", self.max_bytes, lambda n: n >= 1, "must be at least 1")
        )


@register("hf")
class HuggingFace(Corpus):
    """The first ``max_bytes`` of a Hugging Face data set's text, in its own order, one document a line or more.

    What came over the network is kept in the user's cache folder, so that every run of a comparison sees the same text and later
    ones need no network.
    """

    source = "https://huggingface.co/docs/datasets"
    Options = HuggingFaceOptions
    options: HuggingFaceOptions
    needs = {"datasets": "hf"}  # noqa: RUF012

    def read(self) -> bytes:
        """The text; no network, no such data set, subset, split or field is said within seconds."""
        return read_huggingface(self.options)

    def problems(self) -> list[str]:
        return [] if self.options.dataset else ["data.name=hf needs data.dataset=OWNER/NAME, or a local folder"]

    @property
    def title(self) -> str:
        return self.options.dataset

    @property
    def provenance(self) -> dict[str, Any]:
        return {"source": "huggingface", **_settings(self.options)}


def _settings(options: HuggingFaceOptions) -> dict[str, Any]:
    return {key: getattr(options, key) for key in ("dataset", "subset", "split", "text_field", "max_bytes")}


def read_huggingface(cfg: HuggingFaceOptions) -> bytes:
    """The text of a data set; what came over the network is kept in the user's cache folder.

    Raises:
        RequestError: no network, no such data set, subset, split or field, or no text in it.
    """
    if Path(cfg.dataset).expanduser().exists():
        return _stream(cfg)
    key = hashlib.sha256(json.dumps(_settings(cfg), sort_keys=True).encode()).hexdigest()[:16]
    cached = _default_cache() / f"huggingface-{key}.txt"
    if cached.is_file():
        return cached.read_bytes()
    _require_network(cfg.dataset)
    text = _stream(cfg)
    write_bytes_atomic(cached, text)
    return text


def take_text(rows: Iterable[dict[str, Any]], field: str, max_bytes: int) -> bytes:
    """The text of ``rows`` up to ``max_bytes``, cut between two characters; reads no row more than it needs."""
    documents, size = [], 0
    for row in rows:
        if field not in row:
            raise RequestError(unknown("data.text_field", field, row))
        if not isinstance(row[field], str):
            raise RequestError(f"data.text_field={field} holds {type(row[field]).__name__}, not text")
        documents.append(row[field].encode())
        size += len(documents[-1]) + 1
        if size >= max_bytes:
            break
    text = join_documents([document for document in documents if document.strip()])
    if not text:
        raise RequestError("the data set holds no text")
    return text[: cut_at_character(text, max_bytes)]


def _stream(cfg: HuggingFaceOptions) -> bytes:
    import datasets

    name = str(Path(cfg.dataset).expanduser()) if Path(cfg.dataset).expanduser().exists() else cfg.dataset
    try:
        rows = datasets.load_dataset(name, cfg.subset, split=cfg.split, streaming=True)
        return take_text(rows, cfg.text_field, cfg.max_bytes)
    except RequestError as error:
        raise RequestError(f"{cfg.dataset}: {error.message}") from error
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RequestError(f"the data set {cfg.dataset} cannot be read: {reason}") from error


def _require_network(dataset: str, seconds: float = 5.0) -> None:
    """Asked before `datasets` is imported: it would try again for half a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise RequestError(f"the data set {dataset} is not in the cache, and HF_HUB_OFFLINE forbids the network")
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    reason = [f"no answer in {seconds:g} s"]

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=seconds).close()
        except urllib.error.HTTPError:
            pass  # an answer is an answer
        except (OSError, ValueError) as error:
            reason[:] = [str(getattr(error, "reason", error))]
            return
        reason.clear()

    asking = threading.Thread(target=ask, daemon=True)  # looking up a name has no time limit of its own
    asking.start()
    asking.join(seconds)
    if reason:
        raise RequestError(
            f"no network: {endpoint} cannot be reached ({reason[0]}), so the data set {dataset} cannot be streamed; "
            "data.name=moby_dick and data.name=files need none"
        )


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnzoo"
