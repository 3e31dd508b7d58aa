"""Names of folders and of W&B runs, made from what sets things apart: two that differ have two names, on every file system."""

from __future__ import annotations

import hashlib
import re

LONGEST = 110  # characters of a folder's name before its hash, so that W&B holds the whole of it
LONGEST_WANDB = 128
_HASHED = re.compile(r"-[0-9a-f]{10}$")


def file_name(text: str, *, keep_case: bool = False, longest: int = LONGEST) -> str:
    """The text itself where any file system takes it and keeps it apart from others, else a name like it with a hash of it.

    >>> file_name("attention=sdpa_seed=0"), file_name("data=a/b")
    ('attention=sdpa_seed=0', 'data=a-b-f8d6182a2c')

    Args:
        keep_case: capital letters alone are no reason for a hash; the caller sees that no two names differ in them alone.
    """
    name = re.sub(r"[^\w.=+-]+", "-", text, flags=re.ASCII).strip(".")[:longest]
    kept = (
        name == text and not name.startswith("-") and not _HASHED.search(name) and (keep_case or name == name.lower())
    )
    return name if kept else f"{name.lstrip('-')}-{_hash(text)}"


def wandb_name(text: str | None) -> str | None:
    """A name of a run or group, shortened to what W&B keeps: a longer one is found wrong at its upload only."""
    if text is None or len(text) <= LONGEST_WANDB:
        return text
    return f"{text[: LONGEST_WANDB - 11]}-{_hash(text)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:10]
