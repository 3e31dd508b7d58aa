"""An optimiser and a schedule as a researcher writes them, and wrong twins of theirs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnzoo import Optimizer, Options, Schedule


@dataclass(frozen=True)
class LionOptions(Options):
    """lion_lr: learning rate. weight_decay: of matrices."""

    lion_lr: float = 1e-3
    weight_decay: float = 0.1


class PlainLion(torch.optim.Optimizer):
    """It knows nothing of steps that are left out."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "weight_decay": 0.0})
        self.momenta = {}

    def momentum(self, p):
        return self.state[p].setdefault("momentum", torch.zeros_like(p))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.momentum(p)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * (0.9 * momentum + 0.1 * p.grad).sign())
                momentum.lerp_(p.grad, 0.01)


class Lion(Optimizer):
    """Signs of an interpolated momentum."""

    source = "https://arxiv.org/abs/2302.06675"
    Options = LionOptions

    def build(self, groups):
        return PlainLion(groups.two(self.options.weight_decay), self.options.lion_lr)


class OutOfState(PlainLion):
    """Keeps its momentum where no checkpoint looks."""

    def momentum(self, p):
        return self.momenta.setdefault(p, torch.zeros_like(p))


class Forgetful(Lion):
    """Loses its momentum when a run goes on."""

    def build(self, groups):
        return OutOfState(groups.two(self.options.weight_decay), self.options.lion_lr)


class DecaysAll(Lion):
    """Decays norms and convolutions, too."""

    def build(self, groups):
        every = [p for group in vars(groups).values() for p in group]
        return PlainLion([{"params": every, "weight_decay": self.options.weight_decay}], self.options.lion_lr)


class LeavesOut(Lion):
    """Forgets the embeddings."""

    def build(self, groups):
        return PlainLion(groups.linear + groups.convs + groups.rest, self.options.lion_lr)


class Flat(Schedule):
    """The learning rate as it is."""

    source = "a test"

    def factor(self, step, max_steps):
        return 1.0


class Counting(Schedule):
    """Counts for itself how often it was asked."""

    source = "a test"
    asked = 0

    def factor(self, step, max_steps):
        self.asked += 1
        return 1 / self.asked


class Doubles(Schedule):
    """Leaves its bounds."""

    source = "a test"

    def factor(self, step, max_steps):
        return 2.0
