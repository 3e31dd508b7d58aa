"""A text, split before anything else looks at it, then turned into tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnzoo import components
from attnzoo.corpora.base import cut_at_character
from attnzoo.data.config import DataConfig
from attnzoo.data.sources import read_source
from attnzoo.errors import RequestError
from attnzoo.open_groups import option_names
from attnzoo.tokenizers.base import Tokenizer

SHARED_BYTES = 256
"""A run of so many bytes in both splits is a copy: in Moby-Dick nothing above 47 bytes recurs across the splits."""


@dataclass(frozen=True)
class Splits:
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


def load_corpus(cfg: DataConfig) -> Splits:
    """Read, split, train the tokenizer on the training split if it needs training, encode each split on its own.

    Raises:
        RequestError: every reason at once; see `attnzoo.data.sources.read_source`.
    """
    text, origin = read_source(cfg)
    return make_splits(text, origin, cfg.validation_fraction, lambda train: fit_tokenizer(cfg, train))


def make_splits(
    text: bytes, origin: dict[str, Any], validation_fraction: float, fit: Callable[[bytes], Tokenizer]
) -> Splits:
    """Split before anything else looks at the text; ``fit`` makes a tokenizer and sees the training split alone."""
    train, validation = split(text, validation_fraction)
    tokenizer = fit(train)
    return Splits(
        train=torch.from_numpy(tokenizer.encode_array(train).copy()),
        validation=torch.from_numpy(tokenizer.encode_array(validation).copy()),
        tokenizer=tokenizer,
        n_bytes_train=len(train),
        n_bytes_validation=len(validation),
        provenance={
            **origin,
            "validation_fraction": validation_fraction,
            "tokenizer": tokenizer.name,
            "vocab_size": tokenizer.vocab_size,
        },
    )


def fit_tokenizer(cfg: DataConfig, train: bytes) -> Tokenizer:
    """For the training split, which it sees alone."""
    known = option_names("tokenizer", cfg.tokenizer)
    given = {key: value for key, value in cfg.options.items() if key in known}
    return components.get("tokenizer", cfg.tokenizer).fit(
        train, components.parse("tokenizer", cfg.tokenizer, given, "data.")
    )


def split(text: bytes, validation_fraction: float) -> tuple[bytes, bytes]:
    """(training, validation): the last ``validation_fraction`` is kept for validation; no character is cut in two."""
    at = cut_at_character(text, len(text) - round(len(text) * validation_fraction))
    return text[:at], text[at:]


def shared_text(corpus: Splits, run_bytes: int = SHARED_BYTES) -> list[int]:
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


def check_disjoint(corpus: Splits, run_bytes: int = SHARED_BYTES) -> None:
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
