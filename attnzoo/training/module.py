"""One optimiser step, as a LightningModule."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from lightning import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn

from attnzoo.errors import NumericalError
from attnzoo.kernels.compiling import own_graphs
from attnzoo.model import CausalLM
from attnzoo.training.config import TrainerConfig
from attnzoo.training.diagnose import first_nonfinite
from attnzoo.training.evaluate import summed_loss
from attnzoo.training.optim import Together, build_optimizer, build_schedule
from attnzoo.training.stopwatch import Stopwatch
from attnzoo.training.stream import StepStream, Window

MOST_SKIPPED = 40
"""Steps that may overflow in a row: from the first scale, 2^16, so many halvings end far below 1."""


class TrainingModule(LightningModule):
    """The model with its optimisers. A training batch is a `Window`: all micro-batches of one step.

    The gradient is that of the mean over all scored tokens of the window, so a window with few micro-batches or much
    padding counts as what it is. Optimisation is manual: micro-batches are back-propagated one by one to bound memory.

    Nothing here waits for a GPU: the loss is summed there (`take_loss`), and a step whose loss or gradient is not finite
    changes no parameter, nor does any after it, until `assert_finite` looks; on a CPU it looks before each update.

    Args:
        model: trained in place.
        cfg: optimiser settings.
        stream: where a bad step's data is fetched again from.
        precision: 'fp32', 'bf16' or 'fp16', for the diagnosis; the trainer sets the context of training itself.
        compiled: forward and backward passes, by torch.compile.

    ``kernel`` is what computed the attention of the first step taken; ``row`` what is to be logged of the current one;
    ``updating`` says that the parameters are between two steps' values. In fp16 the trainer's scaler multiplies the loss; a step
    whose gradient overflows so is left out and counted in ``skipped``, and `MOST_SKIPPED` in a row are no accident of scale.
    """

    def __init__(
        self, model: CausalLM, cfg: TrainerConfig, stream: StepStream, precision: str, compiled: bool = False
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model, self.cfg, self.stream, self.precision = model, cfg, stream, precision
        # a bound function, not a second module: the state dict keeps one name a parameter
        self.network = own_graphs(model.forward) if compiled else model.__call__
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.schedule, self.lr_factor = build_schedule(cfg), 0.0
        self.loss_sum, self.n_summed = torch.zeros(()), 0
        self.norm: Tensor | None = None
        self.stopwatch = Stopwatch()
        self.latest: dict[str, float] = {}
        self.row: dict[str, float] = {}
        self.kernel: str | None = None
        self.updating, self.bad_step = False, torch.full((), math.inf)
        self.skipped, self.in_a_row = torch.zeros(()), torch.zeros(())

    def configure_optimizers(self) -> Together:
        return build_optimizer(self.model, self.cfg)

    def on_fit_start(self) -> None:
        for name in ("bad_step", "loss_sum", "skipped", "in_a_row"):
            setattr(self, name, getattr(self, name).to(self.device))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["running_loss"] = {"sum": float(self.loss_sum), "steps": self.n_summed, "latest": self.latest}
        if self.scaler is not None:
            checkpoint["skipped_steps"] = [float(self.skipped), float(self.in_a_row)]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        running = checkpoint["running_loss"]
        self.loss_sum, self.n_summed, self.latest = (
            torch.tensor(running["sum"]),
            running["steps"],
            dict(running["latest"]),
        )
        self.skipped, self.in_a_row = map(torch.tensor, checkpoint.get("skipped_steps", [0.0, 0.0]))

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """What keeps small gradients of fp16 from vanishing; its state is in the checkpoint."""
        return getattr(self.trainer.precision_plugin, "scaler", None)

    def transfer_batch_to_device(self, batch: Window, device: torch.device, dataloader_idx: int) -> Window:
        return batch.to(device)

    def training_step(self, window: Window, batch_idx: int) -> None:
        step, optimizer = self.trainer.global_step, cast(LightningOptimizer, self.optimizers())
        self.lr_factor = self.schedule.factor(step, self.cfg.max_steps)
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * self.lr_factor
        total = torch.zeros((), device=self.device)
        for batch in window.batches:
            loss = summed_loss(self.network, batch)[0] / max(window.n_scored, 1)
            self.manual_backward(loss)
            total += loss.detach()
        if self.kernel is None:
            self.kernel = self.model.kernel
        if self.scaler is not None:
            self.scaler.unscale_(optimizer.optimizer)
        self.norm = nn.utils.clip_grad_norm_(self.trained, self.cfg.grad_clip or math.inf)
        self._skip_unless_finite(self._must_be_finite(total, self.norm), step, cast(Together, optimizer.optimizer))
        if self.device.type == "cpu":
            self.assert_finite()
        self.updating = True  # until all of it is done, no state of this run is whole
        optimizer.step()
        optimizer.zero_grad()
        self.loss_sum += total
        self.n_summed += 1
        self.stream.done = step + 1
        self.updating = False

    def _must_be_finite(self, loss: Tensor, norm: Tensor) -> Tensor:
        """What is finite as long as nothing is wrong. A gradient may overflow by its scale, which then halves."""
        if self.scaler is None:
            return loss + norm
        over = 1.0 - norm.isfinite().float()
        self.skipped += over
        self.in_a_row = (self.in_a_row + 1.0) * over
        return torch.where(self.in_a_row > MOST_SKIPPED, math.nan, loss)

    def _skip_unless_finite(self, value: Tensor, step: int, optimizer: Together) -> None:
        self.bad_step = torch.where(value.isfinite(), self.bad_step, self.bad_step.clamp(max=step))
        optimizer.skip_if(self.bad_step.isfinite().float())

    def whole(self, step: int) -> bool:
        """Whether parameters and optimiser hold what the first ``step`` steps made of them. Waits for the device."""
        return not self.updating and float(self.bad_step) >= step

    def assert_finite(self) -> None:
        """Raise when some step so far was not finite. Waits for the device.

        Raises:
            NumericalError: names the step and the first layer whose output or gradient was not finite.
        """
        bad = float(self.bad_step)
        if bad == math.inf:
            return
        window = self.stream.window(int(bad)).to(self.device)
        where = first_nonfinite(self.model, window, self.precision)
        named = f"first in the {where}" if where else "not reproduced when the step was repeated"
        raise NumericalError(f"step {int(bad)} is not finite: {named}; the parameters are those before that step")

    def take_loss(self) -> dict[str, float]:
        """Mean training loss (nats) since the last call; last gradient norm before clipping; learning-rate factor."""
        mean = float(self.loss_sum) / max(self.n_summed, 1)
        norm = math.nan if self.norm is None else float(self.norm)
        self.loss_sum.zero_()
        self.n_summed = 0
        numbers = {"train_loss_nats": mean, "grad_norm": norm, "lr_factor": self.lr_factor}
        if self.scaler is not None:
            numbers |= {"loss_scale": self.scaler.get_scale(), "skipped_steps": float(self.skipped)}
        return numbers
