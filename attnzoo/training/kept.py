"""What a run folder keeps of its text, so that it is read without it: identity, tokenizer, opening. No torch here.

``data.json``: {"sha256", "bytes", …: where the text came from, "tokenizer": its state, "opening": the first validation tokens}.
A run's text is told from others by the SHA-256 of what was read, which also stands in its ``config.yaml`` and its record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnzoo.data.sources import text_name
from attnzoo.errors import RequestError
from attnzoo.files import read_json, write_json_atomic
from attnzoo.tasks.build import reads_text
from attnzoo.training.config import RunConfig, load_config

if TYPE_CHECKING:
    from attnzoo.tasks import Task

FILE = "data.json"
OPENING = 1024
"""Validation tokens that are kept at most: what `attnzoo show` may ask for."""


def identity(task: Task) -> dict[str, Any] | None:
    """For the record: sha256 and bytes of the text, the tokenizer and the SHA-256 of its state; None without a text."""
    if task.tokenizer is None:
        return None
    text, state = task.provenance, task.tokenizer.state()
    return {
        **{key: text[key] for key in ("sha256", "bytes") if key in text},
        "tokenizer": state["name"],
        "tokenizer_sha256": state_sha256(state),
    }


def keep_text(folder: Path, task: Task) -> None:
    """Write ``data.json``; nothing for a task without a text, which its settings make again."""
    if task.tokenizer is not None:
        opening = next(iter(task.validation_batches(1))).tokens[0, :OPENING].tolist()
        state = task.tokenizer.state()
        write_json_atomic(folder / FILE, {**task.provenance, "tokenizer": state, "opening": opening})


def kept_text(folder: Path) -> dict[str, Any] | None:
    """What `keep_text` wrote; None where there is none, as in folders of before.

    Raises:
        RequestError: it is damaged.
    """
    if not (folder / FILE).is_file():
        return None
    kept = read_json(folder / FILE)
    if not isinstance(kept, dict) or not isinstance(kept.get("tokenizer"), dict) or not _tokens(kept.get("opening")):
        raise RequestError(f"{folder / FILE} is damaged: it holds no tokenizer and opening of a text")
    return kept


def kept_sha256(folder: Path) -> str | None:
    """The SHA-256 of the text that the run in this folder was trained on; None where nothing says it."""
    found: Any = None
    with suppress(RequestError):  # what else is wrong with the folder is said by whoever reads it
        found = load_config(folder).data.sha256 if (folder / "config.yaml").is_file() else None
    if not found and (folder / "record.json").is_file():
        with suppress(RequestError):
            found = read_json(folder / "record.json")
            for key in ("quality", "data", "sha256"):  # of a run of before, its record alone says it
                found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) and found else None


def check_text(folder: Path, cfg: RunConfig) -> None:
    """Refuse to go on over another text than that of the run in this folder.

    Args:
        cfg: it names its own text by ``data.sha256``.

    Raises:
        RequestError: with both SHA-256, and the way out.
    """
    there, now = kept_sha256(folder), cfg.data.sha256
    if reads_text(cfg.task) and now and there not in (None, now):
        reason = another(f"the text of {text_name(cfg.data)}", str(there), now)
        raise RequestError(f"run_dir={folder} holds a run on another text", [reason, WAY_OUT])


def check_tokenizer(folder: Path, task: Task) -> None:
    """Refuse to go on with another tokenizer than that of the run in this folder, which numbers the same text otherwise.

    Raises:
        RequestError: with both SHA-256, and the way out.
    """
    kept = kept_text(folder)
    if kept is None or task.tokenizer is None or kept["tokenizer"] == task.tokenizer.state():
        return
    reason = another(
        "the tokenizer, by the package tokenizers of today",
        state_sha256(kept["tokenizer"]),
        state_sha256(task.tokenizer.state()),
    )
    raise RequestError(f"run_dir={folder} holds a run with another tokenizer", [reason, WAY_OUT])


def state_sha256(state: Mapping[str, Any]) -> str:
    """Of a tokenizer, by its state."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


WAY_OUT = "put the text back, choose another run_dir, or start over with trainer.restart=true"


def another(what: str, there: str, now: str) -> str:
    """How the difference reads."""
    return f"{what}: there SHA-256 {there}, now {now}"


def _tokens(opening: Any) -> bool:
    return isinstance(opening, list) and bool(opening) and all(type(token) is int and token >= 0 for token in opening)
