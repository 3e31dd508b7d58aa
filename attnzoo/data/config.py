"""Settings of the text. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class DataConfig:
    """Where the text comes from and how it becomes tokens.

    Args:
        name: moby_dick (embedded), files (your own), hf (a Hugging Face data set; the extra ``hf``).
        paths: text files, for files.
        dataset, subset, split, text_field, max_bytes: for hf; streaming stops at max_bytes.
        tokenizer: bytes (V = 256), or bpe: trained locally on the training split (the extra ``bpe``).
        bpe_vocab: V of the bpe.
        validation_fraction: share of the text, from its end, kept for validation; split before windowing.
        sha256: what the text must be: the SHA-256 of its bytes as they are read, in their order; empty is whatever it is.
            A run folder's config.yaml holds that of its own text.
        allow_shared_text: train even if the same text stands in both splits (copies within the text).
    """

    name: str = "moby_dick"
    paths: list[str] = field(default_factory=list)
    dataset: str = ""
    subset: str | None = None
    split: str = "train"
    text_field: str = "text"
    max_bytes: int = 50_000_000
    tokenizer: str = "bytes"
    bpe_vocab: int = 2048
    validation_fraction: float = 0.1
    sha256: str = ""
    allow_shared_text: bool = False
