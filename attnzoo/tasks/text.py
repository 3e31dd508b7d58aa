"""Predict the next token of a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnzoo.components import register
from attnzoo.data.config import DataConfig
from attnzoo.errors import RequestError
from attnzoo.options import Options
from attnzoo.shapes import IGNORE
from attnzoo.tasks.base import Batch, Task, generator, in_batches

if TYPE_CHECKING:
    from attnzoo.data.corpus import Splits
    from attnzoo.tokenizers.base import Tokenizer


@dataclass(frozen=True)
class TextOptions(Options):
    """validation_tokens: at most this many tokens of the validation split are scored; null is every one."""

    validation_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.validation_tokens is not None and self.validation_tokens < 2:
            raise RequestError(f"validation_tokens={self.validation_tokens}: must be at least 2, or null for all")


@register("text")
class TextTask(Task):
    """The next token of a text, whose end is kept for validation.

    Training windows start anywhere in the training split; validation windows tile the validation split. A token is scored with
    the context its own window gives it, 1 to T tokens, so losses compare at equal T only.
    """

    source = "attnzoo"
    Options = TextOptions
    options: TextOptions
    least_tokens = 2
    reads_text = True
    corpus: Splits

    def prepare(self, data: DataConfig) -> None:
        """Load the text; refuse splits shorter than a window and, unless allowed, text that stands in both."""
        from attnzoo.data.corpus import check_disjoint, load_corpus

        corpus = load_corpus(data)
        short = [
            f"the {name} split has {len(tokens)} tokens; a window needs task.n_tokens + 1 = {self.n_tokens + 1}"
            for name, tokens in (("training", corpus.train), ("validation", corpus.validation))
            if len(tokens) <= self.n_tokens
        ]
        if short:
            raise RequestError("the text is too short", short)
        if not data.allow_shared_text:
            check_disjoint(corpus)
        self.take(corpus)

    def take(self, corpus: Splits) -> None:
        """Read this text."""
        self.corpus = corpus
        available, wanted = (
            len(corpus.validation) - 1,
            self.options.validation_tokens,
        )  # nothing stands before the first
        self.n_scored = available if wanted is None else min(wanted, available)
        scored = corpus.validation[1 : self.n_scored + 1].long().numpy()
        self.bytes_per_token = float(corpus.tokenizer.byte_lengths()[scored].mean())

    @property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]
        return self.corpus.tokenizer

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self.corpus.tokenizer.vocab_size

    @property
    def provenance(self) -> dict[str, Any]:
        return self.corpus.provenance

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Windows drawn with replacement. (B, T) each."""
        import torch

        windows = self.corpus.train.unfold(0, self.n_tokens + 1, 1)  # a view: every window there is
        starts = generator("text/train", self.seed, step).integers(0, len(windows), size=batch_size)
        rows = windows[torch.from_numpy(starts)].long()
        return Batch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())

    def validation_batches(self, batch_size: int) -> Iterator[Batch]:
        """Every token but the first is a target once, in order; the last window is filled up with `IGNORE`."""
        from torch.nn import functional as F

        text = self.corpus.validation[: self.n_scored + 1].long()
        missing = -self.n_scored % self.n_tokens
        tokens = F.pad(text[:-1], (0, missing)).view(-1, self.n_tokens)
        targets = F.pad(text[1:], (0, missing), value=IGNORE).view(-1, self.n_tokens)
        return in_batches(tokens, targets, batch_size)
