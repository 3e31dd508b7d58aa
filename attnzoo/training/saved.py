"""A trained model from disk: of a run folder, or of a folder that `attnzoo export` or `attnzoo import` wrote.

A run's text is not needed for it: the folder keeps its tokenizer and the opening of its validation split
(`attnzoo.training.kept`). Folders of before do not; `load_saved` says what of theirs needs the text.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from attnzoo.arguments import demand
from attnzoo.arguments import path as valid_path
from attnzoo.corpora.moby_dick import read_embedded
from attnzoo.errors import RequestError
from attnzoo.from_files import load_code
from attnzoo.model import CausalLM, build_model
from attnzoo.model import export as exported
from attnzoo.model.build import assemble
from attnzoo.model.config import named
from attnzoo.model.weights import check_sizes, load_weights, saved_vocab_size
from attnzoo.tasks import Task, build_task
from attnzoo.tokenizers import ByteTokenizer, Tokenizer, tokenizer_from_state
from attnzoo.training.config import RunConfig, is_export, load_config
from attnzoo.training.kept import kept_sha256, kept_text

UNKNOWN_LENGTH = 64


@dataclass(frozen=True)
class Saved:
    """What was saved.

    Args:
        name: its attention, or its hybrid's name.
        model: on the CPU, in evaluation mode.
        tokenizer: None where ``no_text`` says why its tokens cannot be read as text.
        n_tokens: T it was trained at; an export does not say, so 64 there, or as far as learned positions reach.
        fresh: makes an untrained model of the same settings.
        opening: (1, T) the first tokens of a run's validation split, where they are known.
        load_task: what a run was trained on, from its own text; raises `RequestError` where that is gone, another, or unknown.
    """

    name: str
    model: CausalLM
    tokenizer: Tokenizer | None
    n_tokens: int
    fresh: Callable[[], CausalLM]
    load_task: Callable[[], Task]
    opening: Tensor | None = None
    no_text: str = ""

    def row(self, n_tokens: int) -> Tensor:
        """(1, at most T) tokens to look at: of the run's validation split; else of the embedded text, or random tokens."""
        if self.opening is not None:
            return self.opening[:, :n_tokens]
        if self.tokenizer is not None:
            start = read_embedded("moby_dick")[0][: 16 * n_tokens].decode("utf-8", "ignore")
            return torch.tensor([self.tokenizer.encode(start)[:n_tokens]])
        draw = torch.Generator().manual_seed(0)
        return torch.randint(self.model.vocab_size, (1, n_tokens), generator=draw)


MODEL_KINDS = ("attention", "positions", "projection")
"""The components that a model is made of; a trained one is loaded without the code of its task."""


def load(folder: str | os.PathLike[str], *, allow_code: bool = False) -> CausalLM:
    """The trained model of a run folder, or the exported one of a folder; on the CPU, in evaluation mode.

    Args:
        allow_code: run the files that its attention or positions came from, where they came from files.

    Raises:
        RequestError: neither, settings that do not fit (every fault), missing, broken or foreign weights.
    """
    demand("no model can be loaded from this", valid_path("folder", folder))
    if (
        Path(folder).expanduser().is_dir()
        and not is_export(Path(folder))
        and not (Path(folder) / "config.yaml").exists()
    ):
        raise RequestError(f"cannot read {folder}: no run folder (config.yaml) and no exported model (config.json)")
    if is_export(Path(folder)):
        return exported.load(Path(folder).expanduser())
    return load_model(folder, allow_code=allow_code)[1]


def load_saved(folder: str | Path, *, allow_code: bool = False) -> Saved:
    """Read a run folder or an exported model.

    Raises:
        RequestError: neither, or a missing or broken file of it.
    """
    folder = Path(folder).expanduser()
    return _export(folder) if is_export(folder) else _run(folder, allow_code)


def load_model(folder: str | os.PathLike[str], *, allow_code: bool = False) -> tuple[RunConfig, CausalLM]:
    """A run's configuration and its trained model, on the CPU in evaluation mode.

    Raises:
        RequestError: no run folder, or a missing or broken checkpoint.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise RequestError(
            f"{folder} is no run folder" + (": it is a file" if folder.exists() else ": it does not exist")
        )
    cfg, weights = load_config(folder), folder / "checkpoints" / "model.safetensors"
    if not weights.exists():
        raise RequestError(f"{folder} holds no trained model: {weights} is missing")
    load_code(cfg.code, allowed=allow_code, kinds=MODEL_KINDS)
    vocab_size = saved_vocab_size(weights)
    check_sizes(cfg.model, cfg.positions, vocab_size, weights)
    model = build_model(cfg, vocab_size)
    load_weights(model, weights)
    return cfg, model.eval()


def load_task(folder: str | os.PathLike[str], cfg: RunConfig) -> Task:
    """What a run was trained on.

    Raises:
        RequestError: its text is gone, or another than the run's.
    """
    folder = Path(folder).expanduser()
    data = replace(cfg.data, sha256=cfg.data.sha256 or kept_sha256(folder) or "")
    return build_task(cfg.task, data, cfg.seed)


def saved_tokenizer(folder: Path) -> tuple[Tokenizer | None, str]:
    """That of a run folder or an export, and why there is none. No model is built.

    Raises:
        RequestError: what is kept of it is damaged.
    """
    if is_export(folder):
        return exported.load_tokenizer(folder), "was exported without a tokenizer"
    tokenizer, _, why = text_of(folder, load_config(folder))
    return tokenizer, why


def _run(folder: Path, allow_code: bool) -> Saved:
    cfg, model = load_model(folder, allow_code=allow_code)
    tokenizer, opening, why = text_of(folder, cfg, allow_code)
    _fit(folder, model, tokenizer, opening)
    return Saved(
        named(cfg.model, cfg.attention).name, model, tokenizer, cfg.task.n_tokens,
        lambda: build_model(cfg, model.vocab_size), lambda: load_task(folder, cfg), opening, why,
    )  # fmt: skip


def text_of(folder: Path, cfg: RunConfig, allow_code: bool = False) -> tuple[Tokenizer | None, Tensor | None, str]:
    """A run's tokenizer, the opening of its validation split, and why there is none."""
    if kept := kept_text(folder):
        opening = torch.tensor([kept["opening"]])
        try:
            load_code(cfg.code, allowed=allow_code, kinds=("tokenizer",))
        except RequestError as refused:
            return None, opening, f"has a tokenizer of a file: {refused}"
        return tokenizer_from_state(kept["tokenizer"]), opening, ""
    try:  # a synthetic task, or a folder of before, whose text may still be there
        task = load_task(folder, cfg)
    except RequestError as error:
        if cfg.data.tokenizer == "bytes":
            return ByteTokenizer(), None, ""
        why = f"needs its text, of which its tokenizer was made and which it did not keep: {error}"
        return None, None, why
    opening = next(iter(task.validation_batches(1))).tokens
    return task.tokenizer, opening, "" if task.tokenizer else f"was trained on {task.name}, no text"


def _fit(folder: Path, model: CausalLM, tokenizer: Tokenizer | None, opening: Tensor | None = None) -> None:
    """Raise `RequestError` where tokens are none of the model's."""
    found = []
    if tokenizer is not None and tokenizer.vocab_size != model.vocab_size:
        found.append(f"the tokenizer has {tokenizer.vocab_size} tokens")
    if opening is not None and int(opening.max()) >= model.vocab_size:
        found.append(f"the opening of its text has token {int(opening.max())}")
    if found:
        raise RequestError(f"{folder} is damaged: its model has {model.vocab_size} tokens", found)


def _export(folder: Path) -> Saved:
    model, tokenizer = exported.load(folder), exported.load_tokenizer(folder)
    _fit(folder, model, tokenizer)
    recipe = exported.recipe_of(model)
    parts = recipe.model, recipe.attention, recipe.positions, recipe.vocab_size, recipe.seed
    longest = model.longest or UNKNOWN_LENGTH

    def no_task() -> Task:
        raise RequestError(f"{folder} was exported: it does not say what it was trained on")

    return Saved(
        named(recipe.model, recipe.attention).name, model, tokenizer, min(longest, UNKNOWN_LENGTH),
        lambda: assemble(*parts), no_task, None, "" if tokenizer else "was exported without a tokenizer",
    )  # fmt: skip
