"""Torch's optimisers stepped as one, left out as one, saved as one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnzoo.errors import RequestError
from attnzoo.optimizers.base import Optimizer, parameter_groups


class Together(torch.optim.Optimizer):
    """Several optimisers stepped as one, so that a step is counted, scheduled and saved once."""

    _step_supports_amp_scaling = True  # a GradScaler then leaves it to `step` to change nothing, and reads no value

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = list(optimizers)
        self.skip: Tensor | None = None
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
        skip = self.skip if over is None else over if self.skip is None else torch.maximum(self.skip, over)
        for o in self.optimizers:
            looks = getattr(o, "_step_supports_amp_scaling", False)  # else the device is waited for
            if skip is not None and looks:  # others of torch's refuse to step where it is set
                o.found_inf, o.grad_scale = skip, None  # type: ignore[attr-defined]
            if skip is None or looks or not bool(skip):
                o.step()
            self.state.update(o.state)  # made at the first step

    def skip_if(self, found_inf: Tensor) -> None:
        """The next step changes no parameter when this scalar (on the parameters' device) is 1."""
        self.skip = found_inf

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [o.state_dict() for o in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for o, part in zip(self.optimizers, state_dict["parts"], strict=True):
            o.load_state_dict(part)
        self._share()


def together(model: nn.Module, chosen: Optimizer) -> Together:
    """What steps the parameters of the model.

    Each group carries ``base_lr``; the learning rate of a step is ``base_lr`` times the schedule's factor.

    Raises:
        RequestError: it leaves a parameter out, has one twice, or has no learning rate to schedule.
    """
    built = chosen.build(parameter_groups(model))
    optimizer = Together([built] if isinstance(built, torch.optim.Optimizer) else built)
    if faults := _faults(model, optimizer):
        raise RequestError(f"the optimizer {chosen.name} cannot train this model", faults)
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    return optimizer


def _faults(model: nn.Module, optimizer: Together) -> list[str]:
    """Parameters that are stepped never or twice, and groups whose learning rate cannot be scheduled."""
    stepped = Counter(id(p) for group in optimizer.param_groups for p in group["params"])
    times = {name: stepped[id(p)] for name, p in model.named_parameters() if p.requires_grad}
    left_out, twice = [name for name in times if times[name] < 1], [name for name in times if times[name] > 1]
    found = [
        f"{what} {', '.join(names[:3])}{f' and {len(names) - 3} more' if names[3:] else ''}"
        for what, names in (("it leaves out", left_out), ("it has twice", twice))
        if names
    ]
    if any(not isinstance(group.get("lr"), (int, float, Tensor)) for group in optimizer.param_groups):
        found.append("a parameter group has no learning rate (lr) to schedule")
    return found
