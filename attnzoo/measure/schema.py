"""What a run record holds, declared once: the source of ``docs/record.schema.json`` and of every path that a report reads.

Nothing but ``schema`` and ``status`` is in every record: a cell that was refused has no cost, and one of an earlier version lacks
what came later. Fields are only added; one that changes its meaning raises `attnzoo.measure.record.SCHEMA`. No torch here.
"""

from __future__ import annotations

import dataclasses
import types
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

from attnzoo.errors import RequestError, unknown
from attnzoo.measure.record import SCHEMA, STATUSES
from attnzoo.options import meanings

Curve = list[list[float]]
"""[[tokens, value], …]"""


@dataclass
class Part:
    """A group of fields. ``others``: the type of fields beyond the declared ones; None where there are none."""

    others: ClassVar[Any] = None


@dataclass
class Ratio(Part):
    """A timing over the baseline's in the same rounds. to: the baseline. low, high: 95 % interval of the median."""

    to: str
    median: float
    low: float
    high: float


@dataclass
class Timing(Part):
    """Milliseconds, over rounds in which all contestants took turns. low, high: distribution-free 95 % interval of the median.
    first: the first call, set-up included. status, reasons: where it did not succeed."""

    median: float
    low: float
    high: float
    rounds: int
    first: float
    ratio: Ratio | None
    status: str
    reasons: list[str]


@dataclass
class LengthPoint(Part):
    """A training step of one sequence of n_tokens. train_step_ms: its median, with low and high."""

    n_tokens: int
    status: str
    reasons: list[str]
    train_step_ms: float
    low: float
    high: float
    rounds: int
    peak_memory_bytes: int


@dataclass
class Memory(Part):
    """Peak of a training step in a process of its own. bytes: what rests between steps (resting_bytes: weights, optimiser, batch)
    and what comes on top. process_bytes: how far the whole process rose."""

    status: str
    reasons: list[str]
    bytes: int | None
    resting_bytes: int | None
    method: str | None
    process_bytes: int | None
    process_method: str | None


@dataclass
class Shape(Part):
    """What was timed. context: tokens of the prefill."""

    batch_size: int
    n_tokens: int
    context: int
    decode_batch_size: int


@dataclass
class Cost(Part):
    """What the model costs. train_flops: of a training step, analytic. cache_bytes: of one sequence of `shape.context` tokens.
    train_matmul_share: FLOPs a second of a training step over matmul_flops_per_s, the device's measured rate.
    timing_id: names the rounds; records with the same one took turns. timing_shared_by: cells whose one timing it is.
    failed: name of a measurement -> why it has none."""

    parameters: int
    train_flops: float
    train_step_ms: Timing
    train_tokens_per_s: float
    train_matmul_share: float
    matmul_flops_per_s: float
    train_peak_memory_bytes: int | None
    train_peak_memory_method: str | None
    train_memory: Memory
    prefill_ms: Timing
    decode_ms_per_token: Timing
    cache_bytes: int
    cache_bytes_formula: int
    shape: Shape
    length_sweep: list[LengthPoint]
    timing_id: str
    timing_baseline: str
    timing_shared_by: list[str]
    timing_environment: dict[str, Any]
    failed: dict[str, str]


@dataclass
class Provenance(Part):
    """Where the text or the rows of the task came from. sha256: of the text."""

    others = Any

    source: str
    sha256: str


@dataclass
class Quality(Part):
    """How well the model predicts; further numbers are those of `metrics`, by name.
    val_bits_per_byte, val_loss_nats, val_perplexity, val_accuracy: of the validation split, every scored token once.
    val_tokens: scored tokens. tokens_seen: input tokens trained on. train_loss_nats: mean since the last logged step.
    uniform_loss_nats: of guessing, ln V. curve: [[tokens, val_loss_nats], …]. curves: the same of further metrics.
    task_accuracy, task_chance, task_curve: by task, the probe's too. task_reasons: why the probe has none.
    sample: a continuation of validation text. data: what was trained on."""

    others = float

    val_bits_per_byte: float
    val_loss_nats: float
    val_perplexity: float
    val_accuracy: float
    val_tokens: int
    tokens_seen: int
    train_loss_nats: float
    uniform_loss_nats: float
    curve: Curve
    curves: dict[str, Curve]
    task_accuracy: dict[str, float]
    task_chance: dict[str, float]
    task_curve: dict[str, Curve]
    task_reasons: list[str]
    sample: str
    data: Provenance


@dataclass
class LeakTest(Part):
    """first_leaking_position: where a change of the future showed first. max_change: the largest, of logits."""

    others = Any

    name: str
    passed: bool
    skipped: bool
    max_change: float
    first_leaking_position: int | None
    detail: str


@dataclass
class Leak(Part):
    """Whether the trained model sees the future. verdict: what a failure means. setting: what was tested, at which sizes."""

    passed: bool
    verdict: str | None
    setting: str
    tests: list[LeakTest]


@dataclass
class CorrectTest(Part):
    """A check of the conformance suite. cases: status -> how many."""

    others = Any

    name: str
    passed: bool
    cases: dict[str, int]
    detail: str
    reasons: list[str]


@dataclass
class Correct(Part):
    """Whether the attention computes what it declares, on the device it was timed on; without it no speed is shown."""

    subject: str
    device: str
    dtypes: list[str]
    quick: bool
    passed: bool
    refused: list[str]
    counts: dict[str, int]
    seconds: float
    tests: list[CorrectTest]


@dataclass
class Decoding(Part):
    """How far decoding token by token is from the parallel pass. bound: what rounding explains, of logits."""

    max_difference: float
    bound: float
    passed: bool | None


@dataclass
class Gpu(Part):
    """The CUDA device, with what nvidia-smi says of it."""

    others = Any

    name: str


@dataclass
class Environment(Part):
    """Where and with what it ran; also the version of each package of interest, null where it is not installed.
    start, end: ISO 8601, UTC. stage_seconds: by stage. git_dirty: whether the checkout was changed since git_commit."""

    others = Any

    attnzoo: str
    python: str
    torch: str | None
    device: str
    device_name: str
    cpu: str
    cores: int | None
    threads: int
    gpu: Gpu | None
    precision: str | None
    precision_reason: str | None
    tf32: bool
    compiled: bool
    compiled_reason: str
    git_commit: str | None
    git_dirty: bool | None
    command: str
    start: str
    end: str
    seconds: float
    stage_seconds: dict[str, float]


@dataclass
class Start(Part):
    """One start of the run, steps from_step to to_step of max_steps."""

    others = Any

    start: str
    end: str
    seconds: float
    from_step: int
    to_step: int
    max_steps: int
    status: str
    precision: str
    threads: int
    device: str
    kernels: dict[str, str | None]
    reasons: list[str]


@dataclass
class Kernels(Part):
    """What really computed the attention."""

    training: str | None
    prefill: str | None
    decoding: str | None


@dataclass
class MetricDeclaration(Part):
    """What a report needs to know of a metric that was asked for. how: how it is measured."""

    title: str
    unit: str
    better: str | None
    decimals: int
    shown: str
    how: str


@dataclass
class Error(Part):
    """What broke a run. frame: where in the code. log: the file with the traceback."""

    others = Any

    type: str
    frame: str | None
    log: str


@dataclass
class Wandb(Part):
    """What was asked of W&B, what was done, and why."""

    asked: str
    mode: str
    reason: str | None
    id: str | None


@dataclass
class RunRecord(Part):
    """One run of one model, as ``record.json``.

    schema: version of this declaration. status: how it ended. reasons: why it is not ok. warnings: what a reader must know.
    attention: the backend or hybrid. options: all that were used. kernel_requested, kernel_resolved: asked for, and what ran.
    config_hash: equal where every setting that can change a result is. layers: of a hybrid, the backend of each layer.
    model: sizes that follow from others. fp16: loss scale and skipped steps. history: earlier lengths whose weights.
    metrics: those asked for beside the usual ones. cost_history: timings of earlier rounds.
    run, source, planned, swept: put in by whoever reads a folder of records: the folder of the run, that of its plan, whether the
    plan still has it, and the swept keys of the cell."""

    schema: int
    status: Literal["ok", "refused", "oom", "failed", "interrupted"]
    reasons: list[str]
    warnings: list[str]
    attention: str
    options: dict[str, Any]
    kernel_requested: str
    kernel_resolved: str | None
    kernels: Kernels
    positions: str
    n_heads: int
    n_kv_heads: int | list[int] | None
    layers: list[str]
    model: dict[str, Any]
    seed: int
    config_hash: str
    data: Provenance
    metrics: dict[str, MetricDeclaration]
    quality: Quality
    cost: Cost
    cost_history: list[Any]
    leak: Leak
    correct: Correct
    decoding: Decoding
    fp16: dict[str, float]
    environment: Environment
    starts: list[Start]
    history: list[dict[str, Any]]
    stages_done: list[str]
    wandb: Wandb
    error: Error
    run: str
    source: str
    planned: bool
    swept: dict[str, Any]


def fields(cls: type[Part]) -> dict[str, Any]:
    """The declared fields of a part and their types."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


@cache
def path(dotted: str) -> str:
    """A path of the record, as it is; said at import where it is mistyped.

    >>> path("cost.train_step_ms.median")
    'cost.train_step_ms.median'

    Raises:
        RequestError: no such field, with the nearest.
    """
    here: Any = RunRecord
    names = dotted.split(".")
    for n, name in enumerate(names):
        cls = next((kind for kind in _members(here) if _is_part(kind)), None)
        if cls is None:  # the rest names an entry of a mapping, or of what is not declared
            if any(kind is Any or get_origin(kind) is dict for kind in _members(here)):
                return dotted
            raise RequestError(f"the record's {'.'.join(names[:n])} has no fields: {dotted!r}")
        known = fields(cls)
        if name not in known and cls.others is not Any:  # a further metric is known to the record that has it
            there = [".".join([*names[:n], each]) for each in known]
            raise RequestError(unknown("field of the record", ".".join(names[: n + 1]), there))
        here = known.get(name, cls.others)
    return dotted


def _is_part(hint: Any) -> TypeGuard[type[Part]]:
    return isinstance(hint, type) and issubclass(hint, Part)


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def json_schema() -> dict[str, Any]:
    """The declaration as a JSON Schema (draft 2020-12)."""
    parts: dict[str, Any] = {}
    whole = _of_part(RunRecord, parts)
    whole["properties"] |= {"schema": {"const": SCHEMA}, "status": {"enum": [*STATUSES]}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "attnzoo run record",
        **whole,
        "required": ["schema", "status"],
        "$defs": parts,
    }


def _of_part(cls: type[Part], parts: dict[str, Any]) -> dict[str, Any]:
    known, said = fields(cls), meanings(cls)
    properties = {name: _of(hint, parts) for name, hint in known.items()}
    for name, text in said.items():
        properties[name] = {"description": text, **properties[name]}
    others: Any = False if cls.others is None else True if cls.others is Any else _of(cls.others, parts)
    first = " ".join((cls.__doc__ or "").split())
    return {"description": first, "type": "object", "properties": properties, "additionalProperties": others}


def _of(hint: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """A type as a schema. A number that is not finite, or was not measured, is null."""
    if hint is Any:
        return {}
    if len(_members(hint)) > 1:
        return {"anyOf": [_of(kind, parts) for kind in _members(hint)]}
    if get_origin(hint) is list:
        return {"type": "array", "items": _of(get_args(hint)[0], parts)}
    if get_origin(hint) is dict:
        return {"type": "object", "additionalProperties": _of(get_args(hint)[1], parts) or True}
    if get_origin(hint) is Literal:
        return {"enum": [*get_args(hint)]}
    if _is_part(hint):
        name = hint.__name__
        if name not in parts:
            parts[name] = {}
            parts[name] = _of_part(hint, parts)
        return {"$ref": f"#/$defs/{name}"}
    named = {str: "string", bool: "boolean", int: "integer", types.NoneType: "null"}
    return {"type": ["number", "null"]} if hint is float else {"type": named[hint]}
