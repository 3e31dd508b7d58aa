"""What `check optimizer:NAME` holds an optimizer to: every parameter steps, none decays that must not, a step that is left out
leaves no trace, a run that goes on takes the steps of one that was never broken off."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnzoo import components
from attnzoo.arguments import demand
from attnzoo.checks.compare import Failed
from attnzoo.errors import RequestError
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig
from attnzoo.model.lm import CausalLM
from attnzoo.optimizers.base import Optimizer, parameter_groups
from attnzoo.optimizers.together import Together, together

MODEL = ModelConfig(n_layers=1, d_model=16, n_heads=2, short_conv=3, tie_embeddings=False)
STEPS = 6
"""Half of them before a run is broken off."""


@dataclass
class Subject:
    """An optimizer that can be made anew, for a small model with every kind of parameter."""

    make: Callable[[], Optimizer]
    device: str

    def fresh(self) -> tuple[CausalLM, Together]:
        model = assemble(MODEL, AttentionConfig("sdpa", {}), PositionsConfig(name="learned"), 11, 0).to(self.device)
        return model, together(model, self.make())

    def step(self, model: CausalLM, optimizer: Together, n: int, size: float = 1e-2) -> None:
        """One with gradients that are a function of its number."""
        random = torch.Generator().manual_seed(n)
        for p in model.parameters():
            p.grad = (size * torch.randn(p.shape, generator=random)).to(p)
        optimizer.step()


def subject(cls: type[Optimizer], given: Mapping[str, Any], device: str) -> Subject:
    options, faults = components.read_class(cls.Options, "optimizer", cls.name, given, "")
    demand(f"the optimizer {cls.__name__} cannot be checked", faults)
    assert options is not None
    return Subject(lambda: cls(cls.Options(**vars(options))), device)


def values(model: CausalLM) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def every_parameter_steps(s: Subject) -> str:
    """Each parameter is in one group, and changes in a step in which it has a gradient."""
    try:
        model, optimizer = s.fresh()
    except RequestError as error:
        raise Failed("every parameter once", "; ".join(error.reasons or [error.message])) from None
    before = values(model)
    for n in range(STEPS):
        s.step(model, optimizer, n)
    still = [name for name, p in model.named_parameters() if torch.equal(p, before[name])]
    if still:
        raise Failed("another value", "the same", ", ".join(still[:3]))
    wild = [name for name, p in model.named_parameters() if not p.isfinite().all()]
    if wild:
        raise Failed("finite parameters", "others", ", ".join(wild[:3]))
    return f"{len(before)} parameters, {STEPS} steps"


def decays_matrices_alone(s: Subject) -> str:
    """With a gradient of zero, norms, biases, convolutions and a backend's own parameters stay as they are: decay would pull
    them away from where they start."""
    model, optimizer = s.fresh()
    groups, before = parameter_groups(model), values(model)
    kept = {id(p) for p in groups.convs + groups.rest}
    for n in range(2):
        s.step(model, optimizer, n, size=0.0)
    moved = [name for name, p in model.named_parameters() if id(p) in kept and not torch.equal(p, before[name])]
    if moved:
        raise Failed("as before", "another value", ", ".join(moved[:3]), "weight decay belongs to matrices")
    return f"{len(kept)} parameters that are no matrices"


def leaves_out_a_step(s: Subject) -> str:
    """A step that is left out, as one with gradients that are no numbers, changes neither parameters nor what comes after."""
    (plain, one), (other, two) = s.fresh(), s.fresh()
    for n in range(STEPS):
        s.step(plain, one, n)
        if n == STEPS // 2:
            before = values(other)
            two.skip_if(torch.tensor(1.0, device=s.device))
            s.step(other, two, n, size=float("nan"))
            two.skip_if(torch.tensor(0.0, device=s.device))
            _same(values(other), before, "the parameters after a step that was left out")
        s.step(other, two, n)
    _same(values(other), values(plain), "later, beside a run without that step")
    return f"one of {STEPS} steps"


def resumes_bit_by_bit(s: Subject) -> str:
    """Saved in a checkpoint, read without code and loaded into a fresh optimizer, it takes the same steps to the last bit."""
    (plain, one), (broken, two) = s.fresh(), s.fresh()
    for n in range(STEPS):
        s.step(plain, one, n)
    for n in range(STEPS // 2):
        s.step(broken, two, n)
    file = io.BytesIO()
    torch.save({"model": broken.state_dict(), "optimizer": two.state_dict()}, file)
    file.seek(0)
    try:
        saved = torch.load(file, weights_only=True)
    except Exception as error:  # whatever torch's reader meets in a state that is more than tensors and plain values
        raise Failed("a state of tensors and plain values", str(error).splitlines()[0]) from None
    again, three = s.fresh()
    again.load_state_dict(saved["model"])
    three.load_state_dict(saved["optimizer"])
    for n in range(STEPS // 2, STEPS):
        s.step(again, three, n)
    _same(values(again), values(plain), f"after {STEPS // 2} steps, a checkpoint and {STEPS - STEPS // 2} more")
    return f"{STEPS} steps, broken off after {STEPS // 2}"


def _same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], when: str) -> None:
    other = [name for name in expected if not torch.equal(found[name], expected[name])]
    if other:
        apart = max(float((found[name] - expected[name]).abs().max()) for name in other)
        raise Failed("the same bits", f"up to {apart:.2g} apart", ", ".join(other[:3]), when)


PROPERTIES = (every_parameter_steps, decays_matrices_alone, leaves_out_a_step, resumes_bit_by_bit)
