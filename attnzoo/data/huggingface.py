"""Text streamed from a Hugging Face data set (the extra ``hf``). No torch here."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attnzoo.data.config import DataConfig
from attnzoo.data.sources import cut_at_character, join_documents
from attnzoo.errors import RequestError, unknown
from attnzoo.files import write_bytes_atomic


def read_huggingface(cfg: DataConfig, cache_dir: str | Path | None = None) -> tuple[bytes, dict[str, Any]]:
    """The first ``cfg.max_bytes`` of a data set's text, in its own order, one document a line or more.

    What came over the network is kept in ``cache_dir`` (default: the user's cache folder), so that every run of a
    comparison sees the same text and later ones need no network. ``cfg.dataset`` may be a local folder.

    Raises:
        RequestError: no network (said within seconds), no such data set, subset, split or field, or no text in it.
    """
    origin = {key: getattr(cfg, key) for key in ("dataset", "subset", "split", "text_field", "max_bytes")}
    provenance = {"source": "huggingface", **origin}
    if Path(cfg.dataset).expanduser().exists():
        return _stream(cfg), provenance
    key = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()[:16]
    cached = Path(cache_dir or _default_cache()) / f"huggingface-{key}.txt"
    if cached.is_file():
        return cached.read_bytes(), provenance
    _require_network(cfg.dataset)
    text = _stream(cfg)
    write_bytes_atomic(cached, text)
    return text, provenance


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


def _stream(cfg: DataConfig) -> bytes:
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
