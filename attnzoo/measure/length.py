"""How a training step grows with the length of the sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnzoo.measure.config import MeasureConfig
from attnzoo.measure.cost import device_of
from attnzoo.measure.latency import take_turns
from attnzoo.measure.limit import Limit
from attnzoo.measure.memory import peak_memory
from attnzoo.measure.step import TrainStep, adamw
from attnzoo.model.lm import CausalLM


def length_sweep(
    models: Mapping[str, CausalLM], *, measure: MeasureConfig, precision: str = "fp32", seed: int = 0
) -> dict[str, list[dict[str, Any]]]:
    """Time the training step of one sequence, all models and lengths together in turn; then weigh each.

    Args:
        models: name -> model, all on one device.
        measure: lengths, rounds, and seconds: here the limit of all timing. What takes too long for it keeps its place,
            with the reason.

    Returns:
        name -> [{n_tokens, status, reasons, train_step_ms, low, high, rounds, peak_memory_bytes}], a part a length;
        milliseconds with the interval of the median, bytes with parameters and AdamW's state.
    """
    device = device_of(models)
    steps = {(name, n): step for name, model in models.items() for n, step in _steps(model, measure.lengths, precision)}
    timings = take_turns(
        {key: steps[key] for key in sorted(steps, key=lambda key: key[1])},  # what the limit leaves out is long, of any name
        rounds=measure.rounds, seconds=measure.seconds, warmup=1, limit=Limit.of(measure.seconds), seed=seed,
        device=device,
    )  # fmt: skip
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
    for (name, n_tokens), timing in timings.items():
        part: dict[str, Any] = {"n_tokens": n_tokens, "status": timing.status, "reasons": timing.reasons}
        if timing.interval is not None:
            own, step = timing.interval, steps[name, n_tokens]
            part |= {"train_step_ms": own.median, "low": own.low, "high": own.high, "rounds": len(timing.samples)}
            part["peak_memory_bytes"] = step.resting_bytes() + peak_memory(step, device)[0]
        found[name].append(part)
    return found


def _steps(model: CausalLM, lengths: Sequence[int], precision: str) -> Iterator[tuple[int, TrainStep]]:
    optimizer = adamw(model)  # one for all: its state is the same at every length
    for n_tokens in lengths:
        yield n_tokens, TrainStep(model, 1, n_tokens, precision=precision, make_optimizer=lambda _: optimizer)
