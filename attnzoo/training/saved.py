"""A trained model from disk: of a run folder, or of a folder that `attnzoo export` or `attnzoo import` wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from attnzoo.data.sources import read_embedded
from attnzoo.data.tokenizer import Tokenizer
from attnzoo.model import CausalLM, build_model
from attnzoo.model.build import assemble
from attnzoo.model.config import named
from attnzoo.model.export import load, load_tokenizer, recipe_of
from attnzoo.tasks import Task
from attnzoo.training.config import is_export
from attnzoo.training.folder import load_run

UNKNOWN_LENGTH = 64


@dataclass(frozen=True)
class Saved:
    """What was saved.

    Args:
        name: its attention, or its hybrid's name.
        model: on the CPU, in evaluation mode.
        tokenizer: None where its tokens are no text, or none was exported.
        n_tokens: T it was trained at; an export does not say, so 64 there, or as far as learned positions reach.
        fresh: makes an untrained model of the same settings.
        task: what a run was trained on; None of an export.
    """

    name: str
    model: CausalLM
    tokenizer: Tokenizer | None
    n_tokens: int
    fresh: Callable[[], CausalLM]
    task: Task | None = None

    def row(self, n_tokens: int) -> Tensor:
        """(1, at most T) tokens to look at: of the run's validation split; of an export the embedded text, or random tokens."""
        if self.task is not None:
            return next(iter(self.task.validation_batches(1))).tokens[:, :n_tokens]
        if self.tokenizer is not None:
            start = read_embedded("moby_dick")[0][: 16 * n_tokens].decode("utf-8", "ignore")
            return torch.tensor([self.tokenizer.encode(start)[:n_tokens]])
        draw = torch.Generator().manual_seed(0)
        return torch.randint(self.model.vocab_size, (1, n_tokens), generator=draw)


def load_saved(folder: str | Path) -> Saved:
    """Read a run folder or an exported model.

    Raises:
        RequestError: neither, or a missing or broken file of it.
    """
    folder = Path(folder).expanduser()
    if not is_export(folder):
        cfg, model, task = load_run(folder)
        name = named(cfg.model, cfg.attention).name
        return Saved(name, model, task.tokenizer, task.n_tokens, lambda: build_model(cfg, task.vocab_size), task)
    model = load(folder)
    recipe = recipe_of(model)
    parts = recipe.model, recipe.attention, recipe.positions, recipe.vocab_size, recipe.seed
    longest = recipe.positions.max_tokens if recipe.positions.name == "learned" else UNKNOWN_LENGTH
    name = named(recipe.model, recipe.attention).name
    return Saved(name, model, load_tokenizer(folder), min(longest, UNKNOWN_LENGTH), lambda: assemble(*parts))
