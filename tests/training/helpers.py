"""Small runs, shared by the tests here."""

from __future__ import annotations

from pathlib import Path

from attnzoo.measure.config import MeasureConfig
from attnzoo.model.config import AttentionConfig, ModelConfig
from attnzoo.settings import read
from attnzoo.tasks.config import TaskConfig
from attnzoo.training.config import LoggerConfig, RunConfig, TrainerConfig

MODEL = {"n_layers": 1, "d_model": 16, "n_heads": 2}
TRAINER = {
    "max_steps": 6,
    "batch_size": 2,
    "eval_every": 3,
    "log_every": 2,
    "progress": False,
    "precision": "fp32",
    "device": "cpu",
}


def tiny(
    folder: Path | str = "unused",
    attention: str = "sdpa",
    *,
    options=None,
    task="recall",
    model=None,
    seed=0,
    **trainer,
) -> RunConfig:
    """A run of a fraction of a second on recall, or on text with task='text'."""
    return RunConfig(
        attention=AttentionConfig(attention, options or {}),
        model=ModelConfig(**{**MODEL, **(model or {})}),
        task=TaskConfig(task, 16, 5, {"n_symbols": 8} if task == "recall" else {"validation_tokens": 200}),
        trainer=trainer_config(**{**TRAINER, **trainer}),
        measure=MeasureConfig(enabled=False, leak=False),
        logger=LoggerConfig(wandb="disabled"),
        seed=seed,
        run_dir=str(folder),
    )


def trainer_config(**settings) -> TrainerConfig:
    """The keys of ``trainer`` as they stand in a file: those of its components lie among the others."""
    arguments, faults = read(TrainerConfig, settings)
    assert not faults
    return TrainerConfig(**arguments)
