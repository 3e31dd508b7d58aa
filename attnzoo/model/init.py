"""Initial values, all of them.

===========================================  ============================================
parameter                                    initial value
===========================================  ============================================
embedding, head (where it is not tied),       N(0, 0.02)
learned positions
qkv, expand, gate, gate_up                   N(0, 1/sqrt(fan_in))
out, down (what a sublayer adds)             N(0, 1/sqrt(fan_in)) / sqrt(2 L)
norms                                        1
short convolution                            1 for the token itself, 0 for earlier ones
a backend's own parameters                   as the backend sets them
===========================================  ============================================
"""

from __future__ import annotations

import math

import torch
from torch import nn

from attnzoo.contract import Attention

EMBEDDING_STD = 0.02


def initialise(model: nn.Module, n_layers: int) -> None:
    """Set every parameter outside the backends from the table above."""
    own = {id(p) for module in model.modules() if isinstance(module, Attention) for p in module.parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if id(parameter) in own:
                continue
            _set(name, parameter, n_layers)


def _set(name: str, parameter: nn.Parameter, n_layers: int) -> None:
    if name.endswith("conv.weight"):
        parameter.zero_()[0] = 1.0
    elif "norm" in name.rsplit(".", 2)[-2]:
        parameter.fill_(1.0)
    elif name in ("embedding.weight", "head.weight") or name.startswith("positions."):
        parameter.normal_(0.0, EMBEDDING_STD)
    elif name.endswith(("qkv.weight", "expand.weight", "gate.weight", "gate_up.weight", "out.weight", "down.weight")):
        std = 1 / math.sqrt(parameter.shape[1])
        parameter.normal_(0.0, std / math.sqrt(2 * n_layers) if name.endswith(("out.weight", "down.weight")) else std)
    else:
        raise AssertionError(f"no initial value is stated for {name}")
