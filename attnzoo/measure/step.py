"""One training step, as it is timed and weighed: forward, backward, optimiser, on random tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnzoo.kernels.compiling import own_graphs
from attnzoo.measure.arithmetic import autocast
from attnzoo.model.lm import CausalLM

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


class TrainStep:
    """A step on B sequences of T random tokens; the weights keep their values, since every learning rate is 0.

    Args:
        model: put in training mode by each call.
        precision: fp32, or bf16 and fp16 for autocast; no loss is scaled, which changes no time.
        compiled: the forward pass and its backward, by torch.compile.
        make_optimizer: AdamW over all parameters when None.
    """

    def __init__(
        self,
        model: CausalLM,
        batch_size: int,
        n_tokens: int,
        *,
        precision: str = "fp32",
        make_optimizer: MakeOptimizer | None = None,
        compiled: bool = False,
    ) -> None:
        self.model, self.precision = model, precision
        self.network = own_graphs(model.forward) if compiled else model.__call__
        self.optimizer = (make_optimizer or adamw)(model)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        self.tokens = random_tokens(model, batch_size, n_tokens)
        self.targets = random_tokens(model, batch_size, n_tokens, seed=1)

    def __call__(self) -> None:
        self.model.train()
        with autocast(self.precision, self.tokens.device):
            loss = self.model.loss(self.network(self.tokens), self.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def resting_bytes(self) -> int:
        """What stays allocated between steps: parameters, buffers, optimiser state, the batch."""
        state = [t for held in self.optimizer.state.values() for t in held.values() if isinstance(t, Tensor)]
        held = [*self.model.parameters(), *self.model.buffers(), *state, self.tokens, self.targets]
        return sum(t.nbytes for t in held)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Two moments a parameter, as most people train."""
    return torch.optim.AdamW(model.parameters(), fused=True)


def random_tokens(model: CausalLM, batch_size: int, n_tokens: int, seed: int = 0) -> Tensor:
    """(B, T) uniform tokens on the model's device."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.vocab_size, (batch_size, n_tokens), generator=draw)
    return tokens.to(model.embedding.weight.device)
