"""Settings of the text. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass
class DataConfig:
    """Where the text comes from and how it becomes tokens. Options of the corpus and of the tokenizer are further keys of this
    group.

    Args:
        name: a corpus: moby_dick (embedded), files (your own), hf (a Hugging Face data set; the extra ``hf``).
        tokenizer: bytes (V = 256), or bpe: trained locally on the training split (the extra ``bpe``).
        validation_fraction: share of the text, from its end, kept for validation; split before windowing.
        sha256: what the text must be: the SHA-256 of its bytes as they are read, in their order; empty is whatever it is.
            A run folder's config.yaml holds that of its own text.
        allow_shared_text: train even if the same text stands in both splits (copies within the text).
    """

    chosen: ClassVar[dict[str, str]] = {"name": "corpus", "tokenizer": "tokenizer"}

    name: str = "moby_dick"
    tokenizer: str = "bytes"
    validation_fraction: float = 0.1
    sha256: str = ""
    allow_shared_text: bool = False
    options: dict[str, Any] = field(default_factory=dict)
