"""What `trainer.compile=auto` rests on: a training step, compiled on a CPU with generated code, gives the eager numbers."""

import shutil

import pytest
import torch

from attnzoo import list_backends, registry
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig

TRAINED = [name for name in list_backends() if "cpu" in registry.get(name).capabilities.training_devices]
ALWAYS = ("sdpa", "gla")
V, B, T, C = 50, 2, 48, 64


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_a_compiled_step_gives_the_eager_loss_and_gradients(name, request):
    if name not in ALWAYS and not request.config.getoption("--slow"):
        pytest.skip("generates code for some seconds; --slow")
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("torch.compile needs a C++ compiler on a CPU, and there is none")
    torch._dynamo.reset()
    size = ModelConfig(n_layers=2, d_model=C, n_heads=4)
    model = assemble(size, AttentionConfig(name, {}), PositionsConfig(), V, 0).train()
    tokens, targets = torch.randint(V, (B, T)), torch.randint(V, (B, T))
    found = []
    for forward in (model.forward, torch.compile(model.forward)):
        model.zero_grad()
        loss = model.loss(forward(tokens), targets)
        loss.backward()
        found.append(
            {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None} | {"loss": loss.detach()}
        )
    torch._dynamo.reset()
    eager, compiled = found
    assert eager.keys() == compiled.keys()
    # sums of at most B T C = 2^13 terms in another order; small gradients come from sums of larger ones
    allowed = B * T * C * torch.finfo(torch.float32).eps * max(float(g.abs().max()) for g in eager.values())
    apart = {n: float((eager[n] - compiled[n]).abs().max()) for n in eager}
    assert {n: gap for n, gap in apart.items() if gap > allowed} == {}
