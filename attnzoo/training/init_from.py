"""Weights to start from: those of another run, or of an export. They are known by content, not by where they lie. No torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attnzoo.errors import RequestError
from attnzoo.files import read_json
from attnzoo.measure.record import config_hash
from attnzoo.terminal import say
from attnzoo.training.config import RunConfig, is_export, load_config, to_dict

if TYPE_CHECKING:
    from attnzoo.model import CausalLM
    from attnzoo.tasks import Task

Config = TypeVar("Config", bound=RunConfig)
LARGEST_HEADER = 100_000_000  # bytes, as in safetensors itself
FIT = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "norm", "mlp", "projection", "rope_dim")
"""Settings of a model that its weights were made for; some change no shape."""


def weights_file(folder: str | Path) -> Path:
    """Where a run folder or an export keeps its weights."""
    folder = Path(folder).expanduser()
    return folder / "model.safetensors" if is_export(folder) else folder / "checkpoints" / "model.safetensors"


def identified(cfg: Config) -> Config:
    """The configuration with the SHA-256 of the weights it starts from. Where they are gone, a run that has started from
    them goes on: its folder knows it.

    Raises:
        RequestError: they are missing or broken, or others than the configuration says.
    """
    source = cfg.trainer.init_from
    if source is None:
        return cfg
    known = cfg.trainer.init_sha256 or _known(cfg)
    file = weights_file(source)
    if not file.is_file():
        if known is None or known != _known(cfg):
            raise RequestError(f"trainer.init_from={source}: no trained model there ({file} is missing)")
        found = known
    else:
        found = weights_sha256(file)
    if cfg.trainer.init_sha256 not in (None, found):
        raise RequestError(
            f"trainer.init_from={source}: other weights than were asked for",
            [f"SHA-256: there {found}, asked for {cfg.trainer.init_sha256}"],
        )
    return replace(cfg, trainer=replace(cfg.trainer, init_sha256=found))


def weights_sha256(file: Path) -> str:
    """Of the names, types, shapes and numbers in a safetensors file, whatever their order and the file's metadata.

    Raises:
        RequestError: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with open(file, "rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if not 2 <= size <= LARGEST_HEADER:
                raise ValueError("no header")
            header = json.loads(opened.read(size))
            for name, entry in sorted(header.items()):
                if name == "__metadata__":
                    continue
                begin, end = entry["data_offsets"]
                digest.update(json.dumps([name, entry["dtype"], entry["shape"]]).encode())
                opened.seek(8 + size + begin)
                for piece in _pieces(opened, end - begin):
                    digest.update(piece)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RequestError(f"{file} cannot be read as safetensors: {error}") from error
    return digest.hexdigest()


def start_from(model: CausalLM, cfg: RunConfig, task: Task) -> dict[str, Any]:
    """Fill the model; returns the entry of the record's ``history``: path, config_hash, step, sha256.

    Raises:
        RequestError: weights of another architecture, or for a text in other tokens, with every reason.
    """
    from attnzoo.model.weights import load_weights

    assert cfg.trainer.init_from is not None
    folder = Path(cfg.trainer.init_from).expanduser()
    faults = [*_misfits(folder, cfg), *_other_tokens(folder, task)]
    entry = {"path": str(folder), **_origin(folder), "sha256": cfg.trainer.init_sha256}
    try:
        load_weights(model, weights_file(folder))
    except RequestError as error:
        faults += error.reasons or [error.message]
    if faults:
        raise RequestError(f"trainer.init_from={folder}: its weights do not fit this model", faults)
    return entry


def _misfits(folder: Path, cfg: RunConfig) -> list[str]:
    """Settings that differ although the shapes may be the same."""
    there = (
        read_json(folder / "config.json").get("model", {})
        if is_export(folder)
        else to_dict(load_config(folder))["model"]
    )
    asked = to_dict(cfg)["model"]
    return [
        f"model.{key}: there {there[key]}, asked for {asked[key]}"
        for key in FIT
        if key in there and key in asked and there[key] != asked[key]
    ]


def _other_tokens(folder: Path, task: Task) -> list[str]:
    """Where the same ids stand for other characters than those that the weights were trained on, which no shape tells."""
    from attnzoo.tokenizers.base import differ
    from attnzoo.training.saved import saved_tokenizer

    if task.tokenizer is None:
        return []
    there, why = saved_tokenizer(folder)
    if there is None and not is_export(folder) and load_config(folder).task.name == "text":
        return [f"its tokens are not known: it {why}"]
    if there is None:  # a synthetic task, or weights from elsewhere
        say(f"{folder} {why}: its ids are taken for those of {task.tokenizer.name}")
        return []
    how = differ(there, task.tokenizer)
    return [f"its tokens are others: {how}"] if how else []


def _origin(folder: Path) -> dict[str, Any]:
    """config_hash and step of a run; None of an export, which does not say."""
    if is_export(folder):
        return {"config_hash": None, "step": None}
    cfg, step = load_config(folder), None
    with suppress(RequestError, LookupError, AttributeError):
        step = read_json(folder / "record.json")["starts"][-1]["to_step"]
    return {"config_hash": config_hash(to_dict(cfg)), "step": cfg.trainer.max_steps if step is None else step}


def _known(cfg: RunConfig) -> str | None:
    """What the run folder says about the weights its run started from."""
    with suppress(RequestError):
        there = load_config(Path(cfg.run_dir).expanduser()).trainer
        if there.init_from == cfg.trainer.init_from:
            return there.init_sha256
    return None


def _pieces(opened: Any, left: int) -> Iterator[bytes]:
    while left > 0:
        piece = opened.read(min(left, 2**20))
        if not piece:
            raise ValueError("it is cut short")
        left -= len(piece)
        yield piece
