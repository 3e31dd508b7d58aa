"""Curves for TensorBoard."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnzoo.components import register
from attnzoo.loggers.base import Logger
from attnzoo.settings import dotted


@register("tensorboard")
class TensorBoard(Logger):
    """Scalars by step in ``tensorboard/`` of the run folder: ``tensorboard --logdir runs`` shows all runs."""

    source = "https://www.tensorflow.org/tensorboard, through Lightning's TensorBoardLogger"

    @classmethod
    def why_not(cls) -> list[str]:
        there = find_spec("tensorboard") or find_spec("tensorboardX")
        return [] if there else ["the package tensorboard is missing: pip install 'attnzoo[tensorboard]'"]

    def start(self, folder: Path, config: dict[str, Any]) -> None:
        from lightning.pytorch.loggers import TensorBoardLogger

        self.board = TensorBoardLogger(str(folder), name="", version="tensorboard", default_hp_metric=False)
        self.board.log_hyperparams({key: str(value) for key, value in dotted(config).items()})

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self.board.log_metrics(numbers, step)

    def finish(self, record: dict[str, Any]) -> None:
        self.board.finalize("success" if record.get("status") == "ok" else "failed")
