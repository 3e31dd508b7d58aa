"""A text, split before anything else looks at it, then turned into tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnzoo.data.config import DataConfig
from attnzoo.data.sources import cut_at_character, read_source
from attnzoo.data.tokenizer import Tokenizer, make_tokenizer
from attnzoo.errors import RequestError

SHARED_BYTES = 256
"""A run of so many bytes in both splits is a copy: in Moby-Dick nothing above 47 bytes recurs across the splits."""


@dataclass(frozen=True)
class Corpus:
    """Two contiguous regions of one text, training first.

    Args:
        train, validation: (n,) tokens, uint8 or int32.
        n_bytes_train, n_bytes_validation: bytes of text that the tokens stand for.
        provenance: source, licence where known, sha256, bytes, tokenizer, vocab_size.
    """

    train: Tensor
    validation: Tensor
    tokenizer: Tokenizer
    n_bytes_train: int
    n_bytes_validation: int
    provenance: dict[str, Any]


def load_corpus(cfg: DataConfig, cache_dir: str | Path | None = None) -> Corpus:
    """Read, split, train the tokenizer on the training split if it needs training, encode each split on its own.

    Raises:
        RequestError: every reason at once; see `attnzoo.data.sources.read_source`.
    """
    text, origin = read_source(cfg, cache_dir)
    train, validation = split(text, cfg.validation_fraction)
    tokenizer = make_tokenizer(cfg.tokenizer, train, cfg.bpe_vocab)
    return Corpus(
        train=torch.from_numpy(tokenizer.encode_array(train).copy()),
        validation=torch.from_numpy(tokenizer.encode_array(validation).copy()),
        tokenizer=tokenizer,
        n_bytes_train=len(train),
        n_bytes_validation=len(validation),
        provenance={
            **origin,
            "validation_fraction": cfg.validation_fraction,
            "tokenizer": tokenizer.name,
            "vocab_size": tokenizer.vocab_size,
        },
    )


def split(text: bytes, validation_fraction: float) -> tuple[bytes, bytes]:
    """(training, validation): the last ``validation_fraction`` is kept for validation; no character is cut in two."""
    at = cut_at_character(text, len(text) - round(len(text) * validation_fraction))
    return text[:at], text[at:]


def shared_text(corpus: Corpus, run_bytes: int = SHARED_BYTES) -> list[int]:
    """Positions of the validation split that start a piece of text which the training split holds too.

    A piece is half of ``run_bytes``. Every run of ``run_bytes`` or more that both splits share contains a piece aligned
    in the training split, so none is missed, at linear cost.
    """
    bytes_per_token = (corpus.n_bytes_train + corpus.n_bytes_validation) / (len(corpus.train) + len(corpus.validation))
    n = max(1, math.floor(run_bytes / bytes_per_token) // 2)
    size = corpus.train.element_size()
    train, validation = corpus.train.numpy().tobytes(), corpus.validation.numpy().tobytes()
    pieces = {train[i : i + n * size] for i in range(0, len(train) - n * size + 1, n * size)}
    return [i // size for i in range(0, len(validation) - n * size + 1, size) if validation[i : i + n * size] in pieces]


def check_disjoint(corpus: Corpus, run_bytes: int = SHARED_BYTES) -> None:
    """The splits are different regions of the text; this looks for the same *words* in both, copied within the text.

    Raises:
        RequestError: a run of ``run_bytes`` occurs in both (runs of half that length are found too, where aligned).
    """
    if not (found := shared_text(corpus, run_bytes)):
        return
    sample = corpus.tokenizer.decode(corpus.validation[found[0] : found[0] + 60].tolist())
    raise RequestError(
        "training and validation share text, so the validation loss would reward memory",
        [
            f"at {len(found)} of {len(corpus.validation)} validation tokens, the first at {found[0]}: {sample[:60]!r}",
            "remove the copies, or accept them with data.allow_shared_text=true",
        ],
    )


def conditional_entropy(tokens: Tensor, context: int, vocab_size: int = 256) -> float:
    """Bits a token, given the ``context`` tokens before it, by the text's own counts: 0 for the unigram entropy.

    Counts of a short text flatter long contexts (each is seen only once), so this is a scale, not a bound.
    """
    if vocab_size ** (context + 1) >= 2**63:
        raise RequestError(f"a context of {context} tokens out of {vocab_size} does not fit 64 bits")
    ids = tokens.numpy().astype(np.int64)
    length = len(ids) - context
    before = np.zeros(length, np.int64)
    for i in range(context):
        before = before * vocab_size + ids[i : i + length]
    return _entropy(before * vocab_size + ids[context:]) - _entropy(before)


def _entropy(values: np.ndarray) -> float:
    share = np.unique(values, return_counts=True)[1] / len(values)
    return float(-(share * np.log2(share)).sum())
