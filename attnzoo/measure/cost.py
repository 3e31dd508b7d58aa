"""What a model costs: operations, parameters, cache by formula or count; train step, prefill, decoding by the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from attnzoo.measure.arithmetic import DTYPES, autocast
from attnzoo.measure.config import MeasureConfig
from attnzoo.measure.latency import Contestant, Timing, take_turns
from attnzoo.measure.roofline import matmul_rate
from attnzoo.measure.step import MakeOptimizer, TrainStep, random_tokens
from attnzoo.model.compiled import decoding_step
from attnzoo.model.lm import CausalLM, ModelCache

CALLS = 17  # two to warm up, and the rounds of a record
BACKWARD_PASSES = 2  # a matrix product's backward is two products of the same size: one for each operand's gradient


def train_step_flops(model: CausalLM, batch_size: int, n_tokens: int) -> float:
    """Floating-point operations of one training step: (1 + 2) · B · `CausalLM.flops`.

    Causal attention counts the visible pairs only. What a fused kernel computes again in its backward, norms,
    activations and the optimiser are left out, so that a rate computed from this never flatters.
    """
    return (1 + BACKWARD_PASSES) * batch_size * model.flops(n_tokens)


def model_costs(model: CausalLM, *, batch_size: int, n_tokens: int, context: int) -> dict[str, Any]:
    """The part of a record's ``cost`` that needs no clock.

    Args:
        batch_size, n_tokens: of the training step.
        context: tokens the cache is made for, one sequence.
    """
    dtype = model.embedding.weight.dtype
    return {
        "parameters": model.parameter_count(),
        "train_flops": train_step_flops(model, batch_size, n_tokens),
        "cache_bytes": model.new_cache(1, context).nbytes,
        "cache_bytes_formula": sum(block.attention.cache_bytes(1, context, dtype) for block in model.layers),
        "shape": {"batch_size": batch_size, "n_tokens": n_tokens, "context": context, "decode_batch_size": 1},
    }


def time_models(
    models: Mapping[str, CausalLM],
    *,
    task_shape: tuple[int, int],
    measure: MeasureConfig,
    baseline: str | None = None,
    precision: str = "fp32",
    make_optimizer: MakeOptimizer | None = None,
    compiled: bool = False,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Time all models together: a training step, a prefill, and decoding per token, all models in turn in every round.

    The models keep their weights. A model that raises keeps its row, with status and reasons in that timing.

    Args:
        models: name -> model, all on one device.
        task_shape: (B, T) of the training step.
        measure: rounds and seconds (shared by the three), decode_context and decode_tokens.
        baseline: the name that ratios refer to.
        compiled: the training step, of every model.

    Returns:
        name -> {train_step_ms, train_tokens_per_s, train_matmul_share, matmul_flops_per_s, prefill_ms, decode_ms_per_token},
        each timing in the form of the record. The share is `train_step_flops` a second over the
        rate of a matrix product. Prefill and decoding are of one sequence with ``decode_context`` tokens, decoding with about
        so many: every token at a length of its own.
    """
    batch_size, n_tokens = task_shape
    context, new = measure.decode_context, measure.decode_tokens
    stages: dict[str, Callable[[CausalLM], Contestant]] = {
        "train_step_ms": lambda m: train_contestant(m, batch_size, n_tokens, precision, make_optimizer, compiled),
        "prefill_ms": lambda m: prefill_contestant(m, 1, context, precision),
        "decode_ms_per_token": lambda m: decode_contestant(m, 1, context, new, precision, calls=measure.rounds + 2),
    }
    found: dict[str, dict[str, Any]] = {name: {} for name in models}
    device = device_of(models)
    rate = matmul_rate(device, DTYPES[precision], seconds=min(1.0, measure.seconds / 10))
    for stage, contestant in stages.items():
        timings = take_turns(
            {name: contestant(model) for name, model in models.items()},
            baseline=baseline,
            rounds=measure.rounds,
            seconds=measure.seconds / len(stages),
            seed=seed,
            device=device,
        )
        for name, timing in timings.items():
            found[name][stage] = timing.to_dict()
            if stage == "train_step_ms":
                a_second = tokens_per_second(timing, batch_size * n_tokens)
                flops = train_step_flops(models[name], batch_size, n_tokens) / (batch_size * n_tokens)
                found[name] |= {
                    "train_tokens_per_s": a_second,
                    "train_matmul_share": None if a_second is None else flops * a_second / rate,
                    "matmul_flops_per_s": rate,
                }
    return found


def train_contestant(
    model: CausalLM,
    batch_size: int,
    n_tokens: int,
    precision: str,
    make_optimizer: MakeOptimizer | None = None,
    compiled: bool = False,
) -> Contestant:
    """Forward, backward and optimiser step; the optimiser and its state come at the first call."""
    work: list[TrainStep] = []

    def run() -> None:  # set up at the first call, so that what fails there is this timing's reason
        if not work:
            step = TrainStep(
                model, batch_size, n_tokens, precision=precision, make_optimizer=make_optimizer, compiled=compiled
            )
            work.append(step)
        work[0]()

    return Contestant(run)


def prefill_contestant(model: CausalLM, batch_size: int, context: int, precision: str) -> Contestant:
    """All tokens of a prompt into a fresh cache, in one pass."""
    tokens = random_tokens(model, batch_size, context)

    def run() -> None:
        model.eval()
        extend(model, tokens, new_cache(model, batch_size, context, precision), precision)

    return Contestant(run)


def decode_contestant(
    model: CausalLM, batch_size: int, context: int, new: int, precision: str, compiled: bool = False, calls: int = CALLS
) -> Contestant:
    """``new`` tokens one after the other with about ``context`` tokens in the cache, per token.

    Each call goes on where the last one ended, so that no length is timed that a call before has seen: what a library prepares
    for each new length, as cuDNN's plan, is paid at every token of a real text. The cache begins so much shorter that
    ``calls`` calls lie around ``context``; after them a longer one is filled, where there are positions for it.
    """
    step, token = decoding_step(model) if compiled else model, random_tokens(model, batch_size, 1)
    held: dict[str, ModelCache] = {}
    span, longest = calls * new, model.longest or math.inf
    first = int(max(1, min(context - span // 2, longest - span)))
    left = 0

    def prepare() -> None:
        nonlocal left
        model.eval()
        if not left:
            begin = held["cache"].length if held else first
            begin = first if begin + span > longest else begin
            cache = new_cache(model, batch_size, begin + span + 1, precision)  # full, it is a graph of its own
            extend(model, random_tokens(model, batch_size, begin), cache, precision)
            held["cache"], left = cache, calls
        left -= 1

    def run() -> None:
        for _ in range(new):
            extend(step, token, held["cache"], precision)

    return Contestant(run, prepare, units=new)


def generate_contestant(
    model: CausalLM, batch_size: int, prompt: int, new: int, precision: str, compiled: bool = False
) -> Contestant:
    """Greedy generation end to end, prompt and cache included, per new token."""
    tokens = random_tokens(model, batch_size, prompt)

    def run() -> None:
        with autocast(precision, tokens.device):
            cache = new_cache(model, batch_size, prompt + new, precision)
            model.generate(tokens, new, cache=cache, compiled=compiled)

    return Contestant(run, units=new)


@torch.no_grad()
def extend(step: Callable[..., torch.Tensor], tokens: torch.Tensor, cache: ModelCache, precision: str) -> None:
    """One pass of a model, or of its compiled step, over new tokens."""
    with autocast(precision, tokens.device):
        step(tokens, cache=cache)


def new_cache(model: CausalLM, batch_size: int, max_tokens: int, precision: str) -> ModelCache:
    """A cache in the type that keys and values have under this precision."""
    with autocast(precision, model.embedding.weight.device):
        return model.new_cache(batch_size, max_tokens)


def device_of(models: Mapping[str, CausalLM]) -> str:
    """The device of the models; the CPU when there are none."""
    return next((str(m.embedding.weight.device) for m in models.values()), "cpu")


def tokens_per_second(timing: Timing, n_tokens: int) -> float | None:
    """Tokens of a step over its median time."""
    return None if timing.interval is None else n_tokens / timing.interval.median * 1000
