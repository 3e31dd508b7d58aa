"""What every optimiser gives: from a model's parameters, by what they are, to torch optimisers. No torch is imported here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from attnzoo.components import Component
from attnzoo.options import Options

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer as TorchOptimizer

CONV_LR = 10.0
"""Learning rate of short convolutions over that of the rest, for steps of Adam's kind: their weights are of size 1, and such
steps do not grow with the weight. With 1 full attention does not learn periodic recall in 200 steps; with 10, in 100."""


@dataclass(frozen=True)
class ParameterGroups:
    """Each trainable parameter of a model once, tied ones too.

    Args:
        linear: weights of linear layers inside the blocks.
        matrices: weights of other linear layers and of embeddings.
        convs: short convolutions.
        rest: norms, biases, a backend's own parameters, whatever their shape.
    """

    linear: list[nn.Parameter]
    matrices: list[nn.Parameter]
    convs: list[nn.Parameter]
    rest: list[nn.Parameter]

    def two(self, weight_decay: float) -> list[dict[str, Any]]:
        """Two of torch's parameter groups: what is decayed, and what is not: a short convolution starts as the identity, and
        decay would pull it away."""
        return used(
            {"params": self.linear + self.matrices, "weight_decay": weight_decay},
            {"params": self.convs + self.rest, "weight_decay": 0.0},
        )


class Optimizer(Component):
    """How the parameters are stepped. One writes `build`; its settings are ``self.options``.

    The learning rate of a step is that of each group as it is built, times the factor of ``trainer.schedule``. Gradients are
    clipped before. State that training must go on with stands in the torch optimiser's ``state_dict``. A step whose loss is
    not finite is left out; one that looks at ``found_inf`` itself, as torch's fused ones do, spares a GPU a wait.
    """

    kind: ClassVar[str] = "optimizer"

    def __init__(self, options: Options) -> None:
        self.options: Any = options

    def build(self, groups: ParameterGroups) -> TorchOptimizer | Sequence[TorchOptimizer]:
        """One torch optimiser, or several that are stepped together; each parameter is in one of them."""
        raise NotImplementedError(f"{type(self).__name__} builds no optimiser")


def used(*groups: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of torch's parameter groups that hold a parameter."""
    return [group for group in groups if group["params"]]


def parameter_groups(model: nn.Module) -> ParameterGroups:
    """The parameters of a model by what they are."""
    from torch import nn

    from attnzoo.model.projection import ShortConv

    kinds = {  # the first that fits
        "linear": {id(m.weight) for m in getattr(model, "blocks", model).modules() if isinstance(m, nn.Linear)},
        "matrices": {id(m.weight) for m in model.modules() if isinstance(m, (nn.Linear, nn.Embedding))},
        "convs": {id(p) for m in model.modules() if isinstance(m, ShortConv) for p in m.parameters()},
    }
    groups: dict[str, list[nn.Parameter]] = {kind: [] for kind in (*kinds, "rest")}
    for parameter in model.parameters():  # deduplicated by torch
        if parameter.requires_grad:
            groups[next((kind for kind in kinds if id(parameter) in kinds[kind]), "rest")].append(parameter)
    return ParameterGroups(**groups)
