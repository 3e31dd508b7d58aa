"""Muon for the weights inside the blocks, AdamW for the rest."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnzoo.arguments import ABOVE_ZERO, bounded
from attnzoo.components import register
from attnzoo.optimizers.adamw import AdamW, AdamWOptions
from attnzoo.optimizers.base import Optimizer, ParameterGroups


@dataclass(frozen=True)
class MuonOptions(AdamWOptions):
    """muon_lr: learning rate of Muon."""

    muon_lr: float = 0.01

    def faults(self) -> list[str]:
        return [*bounded("muon_lr", self.muon_lr, *ABOVE_ZERO), *super().faults()]


@register("muon")
class MuonAdamW(Optimizer):
    """Muon for the linear weights inside the blocks, AdamW for the rest."""

    source = "https://kellerjordan.github.io/posts/muon/"
    Options = MuonOptions
    options: MuonOptions

    def build(self, groups: ParameterGroups) -> list[torch.optim.Optimizer]:
        if not groups.linear:
            return [AdamW(self.options).build(groups)]
        muon = Muon(groups.linear, self.options.muon_lr, self.options.weight_decay, adjust_lr_fn="match_rms_adamw")
        others = replace(groups, linear=[])
        return [muon, *([AdamW(self.options).build(others)] if others.matrices + others.convs + others.rest else [])]


class Muon(torch.optim.Muon):
    """`torch.optim.Muon` with matrices of one shape orthogonalised together, in a precision the device multiplies fast.

    torch's own always goes through bfloat16, which a CPU without bf16 instructions multiplies some twenty times slower
    than float32. Besides, a step with ``found_inf`` set changes nothing, its momentum neither, as in torch's fused optimisers.
    """

    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            alike = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    alike[p.shape, p.device].append(p)
            for parameters in alike.values():
                self._step_alike(parameters, group)

    def _step_alike(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        momentum, lr = group["momentum"], group["lr"]
        for p in parameters:
            if "momentum_buffer" not in self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        buffers = [self.state[p]["momentum_buffer"] for p in parameters]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self.found_inf is not None:  # moved to where it is, a buffer stays as it is
            keep = self.found_inf == 0
            gradients = [torch.where(keep, g, held) for g, held in zip(gradients, buffers, strict=True)]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        ahead = torch._foreach_lerp(gradients, buffers, momentum) if group["nesterov"] else buffers
        updates = orthogonalise(torch.stack(ahead), group["ns_coefficients"], group["ns_steps"], group["eps"])
        decay, rows, columns = 1 - lr * group["weight_decay"], *parameters[0].shape
        scale = lr * 0.2 * math.sqrt(max(rows, columns))  # match_rms_adamw: arXiv:2502.16982
        if self.found_inf is not None:
            updates = torch.where(keep, updates, 0.0)
            decay = torch.where(keep, decay, 1.0)
        torch._foreach_mul_(parameters, decay)
        torch._foreach_add_(parameters, list(updates.to(parameters[0].dtype)), alpha=-scale)


def orthogonalise(g: Tensor, coefficients: Sequence[float], steps: int, eps: float) -> Tensor:
    """The quintic Newton-Schulz iteration of Muon on a stack of matrices (N, rows, columns): singular values near 1.

    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/. In bfloat16 on a GPU, else in float32.
    """
    a, b, c = coefficients
    x = g.to(torch.bfloat16 if g.is_cuda else torch.float32)
    tall = g.shape[-2] > g.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
