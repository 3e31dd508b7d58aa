"""What the starts of a run leave for the next one and for the record: when, how far, in which precision, with which kernels."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from attnzoo.files import finite
from attnzoo.measure.environment import now, resolve_precision
from attnzoo.terminal import say
from attnzoo.training.again import LENGTH, SPLIT
from attnzoo.training.config import RunConfig
from attnzoo.training.folder import RunFolder


@dataclass
class Notes:
    """The starts so far, the present one last, and what led here.

    Args:
        starts: of before, from the record, or from the checkpoint where a kill left no record.
        history: earlier ``max_steps``, and whose weights this run started from.
        precision: of this start; ``device`` too.
        max_steps: asked for in this start.
        step: of the last checkpoint.
        kernel: what computed the attention in training, as far as it is known.
    """

    starts: list[dict[str, Any]]
    history: list[dict[str, Any]]
    precision: str
    device: str
    max_steps: int
    step: int = 0
    kernel: str | None = None
    from_step: int = 0
    start: str = field(default_factory=now)
    clock: float = field(default_factory=time.monotonic)

    def at(self, step: int, kernel: str | None) -> dict[str, Any]:
        """What a checkpoint at this step holds of them."""
        self.step, self.kernel = step, kernel or self.kernel
        running = self.entry("killed", {"training": self.kernel})  # overwritten by an end that is written
        return {
            "starts": [*self.starts, running],
            "history": self.history,
            "precision": self.precision,
            "kernel": self.kernel,
        }

    def entry(self, status: str, kernels: dict[str, Any] | None) -> dict[str, Any]:
        """This start as one of the record's ``starts``."""
        return {
            "start": self.start,
            "end": now(),
            "seconds": self.seconds,
            "from_step": self.from_step,
            "to_step": self.step,
            "max_steps": self.max_steps,
            "status": status,
            "precision": self.precision,
            "threads": torch.get_num_threads(),
            "device": self.device,
            "kernels": kernels or {"training": self.kernel},
        }

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self.clock, 3)


def notes(cfg: RunConfig, folder: RunFolder, device: str, precision: str) -> Notes:
    """What is known when a start begins."""
    old: dict[str, Any] = folder.old or {}
    saved = folder.saved
    starts = [] if cfg.trainer.restart else max(old.get("starts", []), saved.get("starts", []), key=len)
    history = max(old.get("history", []), saved.get("history", []), key=len)
    history = finite(history) if folder.resume_from else []  # plain values, which a checkpoint may hold
    before = _changed(cfg, folder) if folder.resume_from else {}
    # a longer run that was broken off left config.yaml the shorter's, whose length it has noted
    if before and before.get("max_steps", 0) not in [h.get("max_steps") for h in history]:
        history.append({**before, "to_step": folder.resume_step, "status": old.get("status", "killed")})
    kernel = saved.get("kernel") or old.get("kernel_resolved") if folder.resume_from else None
    return Notes(
        finite(starts), history, precision, device, cfg.trainer.max_steps, folder.resume_step,
        None if kernel == "not run yet" else kernel, folder.resume_step,
    )  # fmt: skip


def _changed(cfg: RunConfig, folder: RunFolder) -> dict[str, int]:
    """What the start before was asked for in another way, of what may change."""
    if folder.there is None:
        return {}
    there, asked = vars(folder.there.trainer), vars(cfg.trainer)
    names = [key.rpartition(".")[2] for key in (LENGTH, *SPLIT)]
    return {name: there[name] for name in names if there[name] != asked[name]}


def precision_of(cfg: RunConfig, folder: RunFolder, device: str) -> tuple[str, str]:
    """The precision, and why: a run that goes on keeps the one it was started in, whatever this machine would take."""
    here, why = resolve_precision(cfg.trainer.precision, device)
    old: dict[str, Any] = folder.old or {}
    before = folder.saved.get("precision") or old.get("environment", {}).get("precision")
    if folder.resume_from is None or before in (None, here):
        return here, why
    return before, f"this run was started in it; {why}, which would be {here}"


def say_how_it_starts(cfg: RunConfig, folder: RunFolder, known: Notes) -> None:
    """On standard error, where an earlier start has left something: what becomes of it."""
    if folder.there is None:
        return
    there, asked, step = folder.there.trainer.max_steps, cfg.trainer.max_steps, folder.resume_step
    here, _ = resolve_precision(cfg.trainer.precision, known.device)
    kept = (
        ""
        if here == known.precision
        else f"; in {known.precision}, as it was started, where auto would take {here} here"
    )
    if cfg.trainer.restart:
        say(f"{folder.path}: starts over at step 0, as asked (trainer.restart=true); what was there is removed")
    elif folder.resume_from is None:
        say(f"{folder.path}: starts at step 0: {_without_checkpoint(folder)}")
    elif step == asked:
        say(f"{folder.path}: trained to step {step} by an earlier start; goes on with what comes after training{kept}")
    else:
        before = _changed(cfg, folder)
        anew = " (another run_dir trains from the beginning)"
        longer = f", which ended at {there} before{anew}" if there != asked else ""
        parts = "; a step's rows in other parts than before" if before.keys() - {"max_steps"} else ""
        say(f"{folder.path}: goes on from step {step} of {asked}{longer}{parts}{kept}")


def _without_checkpoint(folder: RunFolder) -> str:
    if folder.old is None:
        return "the run that is there was ended before its first checkpoint"
    return f"the run that is there ({folder.old['status']}) has no checkpoint to go on from"
