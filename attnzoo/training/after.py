"""What is asked of a trained model: a sample, leak tests, and what its attention costs and whether it is correct."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch

from attnzoo.checks import check, leak_test
from attnzoo.checks.canary import entropy_canary
from attnzoo.checks.leak_rounding import explained
from attnzoo.checks.leak_setup import rounding
from attnzoo.checks.measured import measured_size
from attnzoo.measure.arithmetic import DTYPES, autocast
from attnzoo.measure.cost import model_costs, time_models
from attnzoo.measure.failures import failed_timings
from attnzoo.measure.memory import train_step_memory
from attnzoo.model import CausalLM, build_model
from attnzoo.model.config import attention_of_layers, resized
from attnzoo.tasks import Task
from attnzoo.training.config import RunConfig
from attnzoo.training.optim import build_optimizer

LONGEST_SAMPLE = 256
CANARY_WIDTH = 64
CANARY_STEPS = 12
"""Of the canary that goes on with the trained model."""
DECODED = 32
"""Tokens that are decoded one by one, for the difference from the parallel pass."""


def sample(model: CausalLM, task: Task, seed: int, temperature: float = 0.8) -> str:
    """The model's continuation of the opening of the validation split, no longer in all than what it was trained on."""
    tokens = next(iter(task.validation_batches(1))).tokens[:, : max(1, min(64, task.n_tokens // 4))]
    tokens = tokens.to(model.embedding.weight.device)
    new = max(1, min(LONGEST_SAMPLE, task.n_tokens) - tokens.shape[1])
    out = model.generate(tokens, new, temperature=temperature, seed=seed)
    assert task.tokenizer is not None
    return task.tokenizer.decode(out[0, tokens.shape[1] :].tolist())


@torch.no_grad()
def decoding(model: CausalLM, task: Task, device: str, precision: str) -> dict[str, Any]:
    """Decode the end of a validation row token by token, and compare with the parallel pass over all of it.

    Returns:
        max_difference of the logits, the bound of what rounding explains, passed; kernels of prefill and decoding.
    """
    tokens = next(iter(task.validation_batches(1))).tokens.to(device)
    n_tokens = tokens.shape[1]
    singly = min(DECODED, n_tokens // 2)
    with autocast(precision, device):
        parallel = model(tokens)
        cache = model.new_cache(1, n_tokens, dtype=None if precision == "fp32" else DTYPES[precision])
        parts = [model(tokens[:, : n_tokens - singly], cache=cache)]
        kernels: dict[str, str | None] = {"prefill": model.kernel}
        for i in range(n_tokens - singly, n_tokens):
            parts.append(model(tokens[:, i : i + 1], cache=cache))
        kernels["decoding"] = model.kernel if singly else None
        largest = float((torch.cat(parts, 1).double() - parallel.double()).abs().max())
        terms, dtype = rounding(parallel.dtype, [model], torch.device(device))
        bound = terms * float(parallel.abs().max())
        if largest > bound:
            bound += explained(model, [model], tokens, parallel, torch.finfo(dtype).eps, 0)
    return {"max_difference": largest, "bound": bound, "passed": largest <= bound, "kernels": kernels}


def leaks(model: CausalLM, task: Task, cfg: RunConfig, device: str, precision: str) -> dict[str, Any]:
    """The leak tests on this very model, at the length, batch size and precision it was trained with.

    One entropy canary trains from new values; a narrower model of the same attention and layout, on few tokens, takes
    seconds. Another goes on with a copy of this model for a few steps as it was trained: from new values it would need
    hundreds to find a future key among many, while this one has found it if there is any.
    """

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        with autocast(precision, device):
            return model(tokens)

    subject = model if precision == "fp32" else logits
    report = leak_test(
        subject, vocab_size=task.vocab_size, n_tokens=task.n_tokens, seed=cfg.seed, device=device, model=model,
        training_batch=cfg.trainer.batch_size,
    )  # fmt: skip
    heads, n_layers = cfg.model.n_heads, min(2, cfg.model.n_layers)
    head_dim = max(4, CANARY_WIDTH // heads // 2 * 2)  # even, for rope
    narrow = resized(cfg.model, n_layers=n_layers, d_model=head_dim * heads, head_dim=head_dim)
    canary = entropy_canary(
        lambda: build_model(replace(cfg, model=narrow), task.vocab_size),
        task.vocab_size, n_tokens=min(32, task.n_tokens), seed=cfg.seed, device=device,
        within=lambda: autocast(precision, device),
    )  # fmt: skip
    seen = task.train_batch(0, cfg.trainer.batch_size).tokens.flatten().bincount()
    trained = entropy_canary(
        lambda: copy.deepcopy(model), task.vocab_size, n_tokens=task.n_tokens, batch_size=cfg.trainer.batch_size,
        steps=CANARY_STEPS, learning_rate=1e-3, seed=cfg.seed, device=device, name="entropy_canary_trained",
        alphabet=seen.argsort(descending=True)[: int((seen > 0).sum().clamp(min=2))].tolist(),
        within=lambda: autocast(precision, device),
    )  # fmt: skip
    return replace(report, tests=[*report.tests, canary, trained]).to_dict()


def decoding_differs(leak: dict[str, Any]) -> list[str]:
    """The sentence on a record's failed comparison of decoding with the parallel pass, if it has one."""
    tests = [test for test in leak["tests"] if test["name"] == "decoding"]
    return [test["detail"] for test in tests if not (test["passed"] or test["skipped"])]


def correctness(cfg: RunConfig, device: str, model: CausalLM, task: Task, precision: str) -> dict[str, Any]:
    """The short conformance check of every backend of the model with its options on this device, and its attention at the
    measured length, batch, heads and type: no speed is shown without them."""
    choices = attention_of_layers(cfg.model, cfg.attention)
    different = {repr(choice): choice for choice in choices}.values()
    first, *others = [check(c.name, device=device, quick=True, **c.options) for c in different]
    for report in others:
        first.results += report.results
        first.refused += report.refused
        first.seconds += report.seconds
    for attention in {repr(a): a for a in model.attention_modules()}.values():
        first.results += measured_size(
            attention, batch=cfg.trainer.batch_size, n_tokens=task.n_tokens, device=device,
            dtype=DTYPES[precision],
        )  # fmt: skip
    return replace(first, subject=cfg.attention.name).to_dict()


def costs(
    model: CausalLM, task: Task, cfg: RunConfig, device: str, precision: str, compiled: bool = False
) -> dict[str, Any]:
    """The record's cost of this model alone: counts, timings if asked for, peak memory of a step in a process of its own."""
    shape, measure = (cfg.trainer.batch_size, task.n_tokens), cfg.measure
    found = model_costs(model, batch_size=shape[0], n_tokens=shape[1], context=measure.decode_context)
    if measure.timing:
        name = cfg.attention.name
        found |= time_models(
            {name: model}, task_shape=shape, measure=measure, precision=precision, seed=cfg.seed,
            compiled=compiled, make_optimizer=lambda timed: build_optimizer(timed, cfg.trainer),
        )[name]  # fmt: skip
    if measure.memory:
        peak = train_step_memory(
            cfg, vocab_size=task.vocab_size, batch_size=shape[0], n_tokens=shape[1], device=device, precision=precision
        )
        found |= {
            "train_peak_memory_bytes": peak["bytes"],
            "train_peak_memory_method": peak["method"],
            "train_memory": peak,
        }
    if failed := failed_timings(found):
        found["failed"] = failed
    return found
