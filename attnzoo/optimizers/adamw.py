"""AdamW for every parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnzoo.arguments import ABOVE_ZERO, NOT_BELOW_ZERO, bounded, demand
from attnzoo.components import register
from attnzoo.optimizers.base import CONV_LR, Optimizer, ParameterGroups, used
from attnzoo.options import Options

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class AdamWOptions(Options):
    """adamw_lr: learning rate of AdamW; ten times as large for short convolutions. weight_decay: of matrices alone. betas: of the
    running means of the gradient and of its square."""

    adamw_lr: float = 0.003
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)

    def __post_init__(self) -> None:
        demand("these options make no sense", self.faults())

    def faults(self) -> list[str]:
        rates = all(0 <= beta < 1 for beta in self.betas)
        return [
            *bounded("adamw_lr", self.adamw_lr, *ABOVE_ZERO),
            *bounded("weight_decay", self.weight_decay, *NOT_BELOW_ZERO),
            *([] if rates else [f"betas={[*self.betas]}: each must be at least 0 and below 1"]),
        ]


@register("adamw")
class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    source = "https://arxiv.org/abs/1711.05101"
    Options = AdamWOptions
    options: AdamWOptions

    def build(self, groups: ParameterGroups) -> torch.optim.Optimizer:
        import torch

        lr = self.options.adamw_lr
        return torch.optim.AdamW(
            used(
                {"params": groups.linear + groups.matrices, "weight_decay": self.options.weight_decay},
                {"params": groups.convs, "weight_decay": 0.0, "lr": CONV_LR * lr},
                {"params": groups.rest, "weight_decay": 0.0},
            ),
            lr=lr, betas=self.options.betas, fused=True,
        )  # fmt: skip
