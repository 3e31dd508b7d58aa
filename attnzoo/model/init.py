"""Initial values, all of them.

===========================================  ============================================
parameter                                    initial value
===========================================  ============================================
embedding, head (where it is not tied),       N(0, 0.02)
learned positions, relative's table
qkv, expand, gate, gate_up                   N(0, 1/sqrt(fan_in))
out, down (what a sublayer adds)             N(0, 1/sqrt(fan_in)) / sqrt(2 L)
norms                                        1
short convolution                            1 for the token itself, 0 for earlier ones
a backend's or scheme's own parameters       as it sets them (a scheme's may name another N(0, std))
===========================================  ============================================
"""

from __future__ import annotations

import math

import torch
from torch import nn

from attnzoo.contract import Attention
from attnzoo.positions.base import Positions

EMBEDDING_STD = 0.02


def initialise(model: nn.Module, n_layers: int) -> None:
    """Set every parameter outside the backends from the table above."""
    own: dict[int, float | None] = {}
    for module in model.modules():
        if isinstance(module, (Attention, Positions)):
            std = module.initial_std if isinstance(module, Positions) else None
            own |= dict.fromkeys(map(id, module.parameters()), std)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if id(parameter) not in own:
                _set(name, parameter, n_layers)
            elif (std := own[id(parameter)]) is not None:
                parameter.normal_(0.0, std)


def _set(name: str, parameter: nn.Parameter, n_layers: int) -> None:
    if name.endswith("conv.weight"):
        parameter.zero_()[0] = 1.0
    elif "norm" in name.rsplit(".", 2)[-2]:
        parameter.fill_(1.0)
    elif name in ("embedding.weight", "head.weight"):
        parameter.normal_(0.0, EMBEDDING_STD)
    elif name.endswith(("qkv.weight", "expand.weight", "gate.weight", "gate_up.weight", "out.weight", "down.weight")):
        std = 1 / math.sqrt(parameter.shape[1])
        parameter.normal_(0.0, std / math.sqrt(2 * n_layers) if name.endswith(("out.weight", "down.weight")) else std)
    else:
        raise AssertionError(f"no initial value is stated for {name}")
