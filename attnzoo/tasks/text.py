"""Predict the next token of a text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from attnzoo.data.config import DataConfig
from attnzoo.data.corpus import Corpus, check_disjoint, load_corpus
from attnzoo.data.sources import data_problems
from attnzoo.errors import RequestError
from attnzoo.shapes import IGNORE
from attnzoo.tasks.base import Batch, generator, in_batches
from attnzoo.tasks.config import TaskConfig


class TextTask:
    """Training windows start anywhere in the training split; validation windows tile the validation split.

    A token is scored with the context its own window gives it, 1 to T tokens, so losses compare at equal T only.
    """

    name = "text"
    chance = None

    def __init__(self, cfg: TaskConfig, corpus: Corpus, seed: int) -> None:
        self.corpus, self.seed = corpus, seed
        self.n_tokens = cfg.n_tokens
        self.tokenizer = corpus.tokenizer
        self.vocab_size = corpus.tokenizer.vocab_size
        self.provenance: dict[str, Any] = corpus.provenance
        available = len(corpus.validation) - 1  # the first token has nothing before it
        self.n_scored = available if cfg.validation_tokens is None else min(cfg.validation_tokens, available)
        scored = corpus.validation[1 : self.n_scored + 1].long().numpy()
        self.bytes_per_token = float(corpus.tokenizer.byte_lengths()[scored].mean())

    @staticmethod
    def problems(cfg: TaskConfig, data: DataConfig) -> list[str]:
        found = data_problems(data)
        if cfg.n_tokens < 2:
            found.append(f"task.n_tokens={cfg.n_tokens}: must be at least 2")
        if cfg.validation_tokens is not None and cfg.validation_tokens < 1:
            found.append(f"task.validation_tokens={cfg.validation_tokens}: must be at least 1, or null for all")
        return found

    @classmethod
    def build(cls, cfg: TaskConfig, data: DataConfig, seed: int) -> TextTask:
        """Load the text; refuse splits shorter than a window and, unless allowed, text that stands in both.

        Raises:
            RequestError: every reason at once.
        """
        corpus = load_corpus(data)
        short = [
            f"the {name} split has {len(tokens)} tokens; a window needs task.n_tokens + 1 = {cfg.n_tokens + 1}"
            for name, tokens in (("training", corpus.train), ("validation", corpus.validation))
            if len(tokens) <= cfg.n_tokens
        ]
        if short:
            raise RequestError("the text is too short", short)
        if not data.allow_shared_text:
            check_disjoint(corpus)
        return cls(cfg, corpus, seed)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Windows drawn with replacement. (B, T) each."""
        windows = self.corpus.train.unfold(0, self.n_tokens + 1, 1)  # a view: every window there is
        starts = generator("text/train", self.seed, step).integers(0, len(windows), size=batch_size)
        rows = windows[torch.from_numpy(starts)].long()
        return Batch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())

    def validation_batches(self, batch_size: int) -> Iterator[Batch]:
        """Every token but the first is a target once, in order; the last window is filled up with `IGNORE`."""
        text = self.corpus.validation[: self.n_scored + 1].long()
        missing = -self.n_scored % self.n_tokens
        tokens = F.pad(text[:-1], (0, missing)).view(-1, self.n_tokens)
        targets = F.pad(text[1:], (0, missing), value=IGNORE).view(-1, self.n_tokens)
        return in_batches(tokens, targets, batch_size)
