"""Which parameter is stepped by what, and how far: groups, Muon and AdamW side by side, the schedule."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnzoo.model.projection import ShortConv
from attnzoo.training.config import TrainerConfig

CONV_LR = 10.0
"""Learning rate of short convolutions over that of the rest of AdamW's: their weights are of size 1, and AdamW's steps
do not grow with the weight. With 1 full attention does not learn periodic recall in 200 steps; with 10, in 100."""


def schedule(step: int, cfg: TrainerConfig) -> float:
    """Factor of the learning rate at ``step`` (the first is 0): linear warm-up, then wsd or cosine.

    wsd is 1 until it falls linearly over the last ``decay_fraction`` of the steps (arXiv:2404.06395); cosine falls
    over all steps after the warm-up. Both would reach 0 one step after the last.
    """
    warmup = min(1.0, (step + 1) / (cfg.warmup_steps + 1))
    if cfg.schedule == "wsd":
        decay_steps = max(1.0, cfg.decay_fraction * cfg.max_steps)
        return min(warmup, (cfg.max_steps - step) / decay_steps)
    progress = (step - cfg.warmup_steps) / max(1, cfg.max_steps - cfg.warmup_steps)
    return warmup * 0.5 * (1 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))


def parameter_groups(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Each trainable parameter once, tied ones too: linear (weights in blocks), matrices (other), convs, rest.

    Matrices are the weights of linear layers and embeddings, and decayed. Norms, convolutions and a backend's own
    parameters are not, whatever their shape: a short convolution starts as the identity; decay would pull it away.
    """
    kinds = {  # the first that fits
        "linear": {id(m.weight) for m in getattr(model, "blocks", model).modules() if isinstance(m, nn.Linear)},
        "matrices": {id(m.weight) for m in model.modules() if isinstance(m, (nn.Linear, nn.Embedding))},
        "convs": {id(p) for m in model.modules() if isinstance(m, ShortConv) for p in m.parameters()},
    }
    groups: dict[str, list[nn.Parameter]] = {kind: [] for kind in (*kinds, "rest")}
    for parameter in model.parameters():  # deduplicated by torch
        if parameter.requires_grad:
            groups[next((kind for kind in kinds if id(parameter) in kinds[kind]), "rest")].append(parameter)
    return groups


class Muon(torch.optim.Muon):
    """`torch.optim.Muon` with matrices of one shape orthogonalised together, in a precision the device multiplies fast.

    torch's own always goes through bfloat16, which a CPU without bf16 instructions multiplies some twenty times slower
    than float32. Besides, a step with ``found_inf`` set changes nothing, its momentum neither, as in torch's fused optimisers.
    """

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


class Together(torch.optim.Optimizer):
    """Several optimisers stepped as one, so that a step is counted, scheduled and saved once."""

    _step_supports_amp_scaling = True  # a GradScaler then leaves it to `step` to change nothing, and reads no value

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)
        super().__init__([group for o in self.optimizers for group in o.param_groups], {})
        self._share()

    def _share(self) -> None:
        """One view of the parts' groups and state: what is written there is read by the part that steps."""
        self.param_groups = [group for o in self.optimizers for group in o.param_groups]
        self.state = defaultdict(dict)
        for o in self.optimizers:
            self.state.update(o.state)

    def step(self, closure: Any = None) -> Any:
        over = getattr(self, "found_inf", None)  # set by a GradScaler for the length of this call
        for o in self.optimizers:
            if over is not None:
                o.found_inf = torch.maximum(o.found_inf, over)  # type: ignore[attr-defined]  # `skip_if` has set it
            o.step()
            self.state.update(o.state)  # made at the first step

    def skip_if(self, found_inf: Tensor) -> None:
        """The next step changes no parameter when this scalar (on the parameters' device) is 1."""
        for o in self.optimizers:
            o.found_inf = found_inf  # type: ignore[attr-defined]  # the protocol of torch.amp.GradScaler
            o.grad_scale = None  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [o.state_dict() for o in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for o, part in zip(self.optimizers, state_dict["parts"], strict=True):
            o.load_state_dict(part)
        self._share()


def build_optimizer(model: nn.Module, cfg: TrainerConfig) -> Together:
    """AdamW for everything, or Muon for the linear weights inside the blocks and AdamW for the rest.

    Each group carries ``base_lr``; the learning rate of a step is ``base_lr`` times `schedule`.
    """
    groups = parameter_groups(model)
    decayed = groups["matrices"]
    optimizers: list[torch.optim.Optimizer] = []
    if cfg.optimizer == "muon" and groups["linear"]:
        muon = Muon(groups["linear"], cfg.muon_lr, cfg.weight_decay, adjust_lr_fn="match_rms_adamw")
        optimizers.append(muon)
    else:
        decayed = groups["linear"] + decayed
    for_adamw = (
        {"params": decayed, "weight_decay": cfg.weight_decay},
        {"params": groups["convs"], "weight_decay": 0.0, "lr": CONV_LR * cfg.adamw_lr},
        {"params": groups["rest"], "weight_decay": 0.0},
    )
    used = [group for group in for_adamw if group["params"]]
    if used:
        b1, b2 = cfg.betas
        optimizers.append(torch.optim.AdamW(used, lr=cfg.adamw_lr, betas=(b1, b2), fused=True))
    for o in optimizers:
        for group in o.param_groups:
            group["base_lr"] = group["lr"]
    return Together(optimizers)
